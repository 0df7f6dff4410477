#include "prism/ops/cuda_kernels.h"

#include <optional>

namespace prism {
namespace {

std::optional<CudaKernels>& table() {
  static std::optional<CudaKernels> kernels;
  return kernels;
}

}  // namespace

void set_cuda_kernels(const CudaKernels& kernels) { table() = kernels; }
const CudaKernels* cuda_kernels() { return table() ? &*table() : nullptr; }

}  // namespace prism
