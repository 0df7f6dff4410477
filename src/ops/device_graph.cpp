#include "prism/ops/device_graph.h"

#include "prism/core/error.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {

std::unique_ptr<DeviceGraph> record_device_graph(const std::function<void()>& work) {
  check(cuda_kernels(), "device graph: libprism_cuda.so is not loaded");
  return cuda_kernels()->record_graph(work);
}

}  // namespace prism
