#pragma once
// One launch of the scan.
#include "kernels/prism_chunk/cuda/scan.cuh"

namespace prism::kernels::cuda {

template <ScanPass kPass>
const char* launch_scan(const ScanParams& params, Scalar dtype, CUstream_st* stream);

}  // namespace prism::kernels::cuda
