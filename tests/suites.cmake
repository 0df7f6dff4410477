# Run by ctest: a test for each suite of a GoogleTest program. One for each of its tests would start the program, which
# loads LibTorch for half a second, 1,700 times.
function(prism_add_suites program prefix)
  execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE list RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    add_test(${prefix}.cannot_be_listed ${program} --gtest_list_tests)
    return()
  endif()
  string(REGEX MATCHALL "\n[^ \n#]+[.]" suites "\n${list}")
  foreach(suite ${suites})
    string(STRIP ${suite} suite)
    string(REGEX REPLACE "[.]$" "" name ${suite})
    add_test(${prefix}.${name} ${program} --gtest_filter=${suite}*)
    # Skipped: nothing passed, and the last line names a skipped test, not a failed one.
    set_tests_properties(${prefix}.${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "${PRISM_TEST_ENVIRONMENT}"
      SKIP_REGULAR_EXPRESSION "PASSED  . 0 tests.*SKIPPED . [^\n]*\n*$")
  endforeach()
endfunction()
