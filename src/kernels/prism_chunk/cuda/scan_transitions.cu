#include "kernels/prism_chunk/cuda/scan_kernel.cuh"

namespace prism::kernels::cuda {

template const char* launch_scan<ScanPass::kTransitions>(const ScanParams&, Scalar, CUstream_st*);

}  // namespace prism::kernels::cuda
