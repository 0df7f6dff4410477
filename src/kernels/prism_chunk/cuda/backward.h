#pragma once
// The launches of the backward.
#include "kernels/prism_chunk/cuda/backward.cuh"

namespace prism::kernels::cuda {

/// dS before every segment of the rows that are cut, from zeros after it.
const char* launch_segment_gradients(const BackwardParams& params, Scalar dtype, CUstream_st* stream);
/// The same from what is after it.
const char* launch_segment_folds(const BackwardParams& params, Scalar dtype, CUstream_st* stream);
/// dS at the chunks' ends, dw_1, dS_0.
const char* launch_state_gradients(const BackwardParams& params, Scalar dtype, CUstream_st* stream);
/// Everything else.
const char* launch_chunk_gradients_bf16(const BackwardParams& params, CUstream_st* stream);
const char* launch_chunk_gradients_f16(const BackwardParams& params, CUstream_st* stream);

}  // namespace prism::kernels::cuda
