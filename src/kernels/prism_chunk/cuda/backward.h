#pragma once
// The launches of the backward.
#include "kernels/prism_chunk/cuda/backward.cuh"

namespace prism::kernels::cuda {

/// prism_chunk_backward with the records of the solve already at the workspace's start.
const char* launch_backward(const PrismChunkCudaShape& shape, const PrismChunkInputs& in,
                            const void* chunk_states, const View& d_o, const void* dfinal_state,
                            const PrismChunkGradients& out, void* workspace, CUstream_st* stream);

/// dS at the chunks' ends, dw_1, dS_0; then everything else.
const char* launch_state_gradients(const BackwardParams& params, Scalar dtype, CUstream_st* stream);
const char* launch_chunk_gradients_bf16(const BackwardParams& params, CUstream_st* stream);
const char* launch_chunk_gradients_f16(const BackwardParams& params, CUstream_st* stream);

}  // namespace prism::kernels::cuda
