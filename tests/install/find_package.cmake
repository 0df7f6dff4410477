# Installs the build into a fresh prefix, builds examples/find_package against it, and runs it on a run that the
# installed command trained.
#   cmake -DBUILD=<build folder> -DSOURCE=<source folder> [-DSANITIZER=<of the build>] -P find_package.cmake
set(work ${BUILD}/install-test)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(step name)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${name} failed (${status}):\n${out}\n${err}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

set(flags)
if(SANITIZER)  # its runtime comes with the program
  set(flags -DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZER})
endif()

step("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
step("configure" ${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/examples/find_package -B ${work}/example
  -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_BUILD_TYPE=Release ${flags})
step("build" ${CMAKE_COMMAND} --build ${work}/example)

set(log "user_id,item_id,timestamp\n")
foreach(user RANGE 1 20)
  foreach(place RANGE 1 6)
    math(EXPR item "(${user} + ${place}) % 9")
    string(APPEND log "u${user},i${item},${place}\n")
  endforeach()
endforeach()
file(WRITE ${work}/log.csv "${log}")
step("train" ${work}/prefix/bin/prism train log.csv --out run --epochs 1 --width 16 --quiet)
step("example" ${work}/example/next_items run i1 i2 i3)
if(NOT output MATCHES "^i[0-9]\t" OR NOT output MATCHES "first after 3 steps: i[0-9]")
  message(FATAL_ERROR "the example printed:\n${output}")
endif()
execute_process(COMMAND ${work}/prefix/bin/prism report run WORKING_DIRECTORY ${work} RESULT_VARIABLE status
  OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT status EQUAL 0 AND NOT err MATCHES "matplotlib")  # the pictures need a package that may be absent
  message(FATAL_ERROR "the installed report failed (${status}):\n${out}\n${err}")
endif()
file(REMOVE_RECURSE ${work})
