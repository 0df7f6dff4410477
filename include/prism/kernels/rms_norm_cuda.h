#pragma once
// rms_norm on a CUDA device: the functions of rms_norm.h with device pointers and a stream.
#include "prism/kernels/rms_norm.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// Asynchronous on `stream`; one launch, no host synchronisation, no allocation. As in rms_norm.h, with
/// arithmetic in fp32 (fp64 for fp64), except that
/// - the weight is fp32 beside every x but fp64;
/// - y has the type `result`: x's, or, without a gate and beside an x of fp32, bf16 or fp16.
/// Returns nullptr, or what went wrong.
const char* rms_norm_forward(const RmsNormShape& shape, Scalar result, const RmsNormInputs& in, void* y,
                             CUstream_st* stream);

/// Bytes for rms_norm_backward; 256-byte aligned device memory, nothing read from it.
int64_t rms_norm_backward_workspace(const RmsNormShape& shape);

/// Two launches, the second only with dweight. dy has the type `result`, dweight the weight's. dweight is
/// summed in an order that follows from shape, types and alignment alone, so repeats are bit-equal; it is
/// zero without tokens. `workspace` may be null without dweight.
const char* rms_norm_backward(const RmsNormShape& shape, Scalar result, const RmsNormInputs& in,
                              const View& dy, const RmsNormGradients& out, void* workspace,
                              CUstream_st* stream);

}  // namespace prism::kernels::cuda
