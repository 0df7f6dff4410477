# LibTorch from the PyPI wheel, without its own CMake package (which wants a CUDA toolkit and every CUDA wheel).
set(TORCH_DIR "" CACHE PATH "site-packages/torch of the pinned wheel")
if(NOT EXISTS ${TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "TORCH_DIR is \"${TORCH_DIR}\", which has no lib/libtorch_cpu.so; "
    "./run build sets it, or pass -DTORCH_DIR=<venv>/lib/python3.X/site-packages/torch")
endif()
foreach(name c10 c10_cuda torch_cpu torch_cuda)
  add_library(torch::${name} SHARED IMPORTED)
  set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${name}.so
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_DIR}/include;${TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCH_DIR}/include;${TORCH_DIR}/include/torch/csrc/api/include")
endforeach()
# LibTorch bundles the headers of fmt, which its include directory puts before any other; src/core/formatting.cpp is
# the library.
set_property(TARGET torch::torch_cpu PROPERTY INTERFACE_LINK_LIBRARIES torch::c10)
set(CMAKE_BUILD_RPATH "$ORIGIN;${TORCH_DIR}/lib")  # $ORIGIN: libprism.so opens libprism_cuda.so beside it
