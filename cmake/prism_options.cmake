# Flags of our own code, as the interface target prism::options.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")  # -g1 keeps line numbers; -g doubles the compile time of LibTorch's headers
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache asks for it, with precompiled headers
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache asks for before it caches compilations that use precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

set(PRISM_SANITIZER "" CACHE STRING "Sanitizers of -fsanitize=, for instance address,undefined")
if(PRISM_SANITIZER)
  add_compile_options(-fsanitize=${PRISM_SANITIZER} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PRISM_SANITIZER})
  add_compile_definitions(PRISM_FEW_TARGETS)  # src/kernels/common/targets.h
  if(PRISM_SANITIZER MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  # Instrumented code of LibTorch's headers (std::optional of a generator) looks uninitialized to GCC 12.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endif()

add_library(prism_options INTERFACE)
add_library(prism::options ALIAS prism_options)
target_compile_options(prism_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror)
# GCC 12 reports std::string::insert and replace as overlapping copies (GCC bug 105329).
target_compile_options(prism_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
