# The facts that `prism --version` prints, as compile definitions of the one file that needs them.
find_package(Git QUIET)
set(PRISM_COMMIT unknown)
if(GIT_FOUND AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE PRISM_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(STRINGS ${TORCH_DIR}/version.py torch_version_line REGEX "^__version__")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" PRISM_TORCH_VERSION "${torch_version_line}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/build_info.h.in ${CMAKE_BINARY_DIR}/generated/build_info.h)
add_library(prism_build_info INTERFACE)
add_library(prism::build_info ALIAS prism_build_info)
target_include_directories(prism_build_info INTERFACE ${CMAKE_BINARY_DIR}/generated)
