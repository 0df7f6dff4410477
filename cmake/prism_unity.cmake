# Files that use LibTorch, eight to a compiler run: instantiating what its headers hold takes 5 CPU seconds whether one
# file follows or eight, so that a build from nothing takes half the time. After a change seven neighbours are compiled
# too; whoever works on the code for long sets PRISM_UNITY=OFF (the debug preset does).
option(PRISM_UNITY "Compile files that use LibTorch in groups" ON)

# prism_compile_together(TARGET [EXCEPT REGEX]): files that match REGEX are compiled one by one.
function(prism_compile_together target)
  cmake_parse_arguments(ARG "" EXCEPT "" ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PRISM_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(ARG_EXCEPT)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX ${ARG_EXCEPT})
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
