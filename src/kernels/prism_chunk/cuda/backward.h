#pragma once
// The launches of the backward.
#include "kernels/prism_chunk/cuda/backward.cuh"

namespace prism::kernels::cuda {

/// dS at the chunks' ends, dw_1, dS_0; then everything else.
const char* launch_state_gradients(const BackwardParams& params, Scalar dtype, CUstream_st* stream);
const char* launch_chunk_gradients_bf16(const BackwardParams& params, CUstream_st* stream);
const char* launch_chunk_gradients_f16(const BackwardParams& params, CUstream_st* stream);

}  // namespace prism::kernels::cuda
