# LibTorch's headers, compiled once: 22 CPU seconds of every file that uses them become 6. Two sets, since the flags
# must be the same: the library's, and the tests', which are not optimised and see GoogleTest too. Every file still
# includes what it uses; -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON shows it.
set(PRISM_TORCH_HEADERS <torch/nn/module.h> <ATen/Functions.h>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/precompiled.cpp CONTENT "")  # written only when it changes

# prism_precompiled(NAME HEADERS...): an object library that other targets take the headers from.
function(prism_precompiled name)
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/generated/precompiled.cpp)
  target_link_libraries(${name} PRIVATE torch::torch_cpu torch::c10 prism::options prism::openmp)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# prism_use_precompiled(TARGET NAME [EXCEPT REGEX]): files that match REGEX do without.
function(prism_use_precompiled target name)
  cmake_parse_arguments(ARG "" EXCEPT "" ${ARGN})
  target_precompile_headers(${target} REUSE_FROM ${name})
  if(ARG_EXCEPT)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX ${ARG_EXCEPT})
    set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

prism_precompiled(prism_torch_headers ${PRISM_TORCH_HEADERS})
