#pragma once
// dropout_add on a CUDA device: the same mask as on the CPU, bit for bit.
#include "prism/kernels/dropout.h"
#include "prism/kernels/types.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// out_i = residual_i + scale x_i where element i is kept, else residual_i, in fp32 and rounded once. x has
/// the type `input`, residual and out the type `result`: fp32 or x's own, of fp32, bf16 and fp16. `residual`
/// may be null (zeros). Asynchronous on `stream`, one launch, two where the index passes a multiple of 2^32.
/// Returns nullptr, or what went wrong.
const char* dropout_add(const DropoutMask& mask, Scalar input, Scalar result, const void* residual,
                        const void* x, float scale, void* out, int64_t count, CUstream_st* stream);

}  // namespace prism::kernels::cuda
