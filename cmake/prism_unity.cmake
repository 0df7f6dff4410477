# Files that use LibTorch, eight of a folder to a compiler run: instantiating what its headers hold takes 5 CPU seconds
# whether one file follows or eight, so that a build from nothing takes half the time. After a change the neighbours are
# compiled too; whoever works on the code for long sets PRISM_UNITY=0 (the debug preset does). Names in anonymous
# namespaces are unique in a folder; PRISM_UNITY=1000 shows where they are not.
set(PRISM_UNITY 8 CACHE STRING "Files that use LibTorch to a compiler run; 0: one")

# prism_compile_together(TARGET [EXCEPT REGEX]): files that match REGEX are compiled one by one.
function(prism_compile_together target)
  cmake_parse_arguments(ARG "" EXCEPT "" ${ARGN})
  if(NOT PRISM_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    if(ARG_EXCEPT AND source MATCHES "${ARG_EXCEPT}")
      continue()
    endif()
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder "${folder}" NAME)
    math(EXPR count_${folder} "0${count_${folder}} + 1")
    math(EXPR group "(${count_${folder}} - 1) / ${PRISM_UNITY}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${folder}_${group}")
  endforeach()
endfunction()
