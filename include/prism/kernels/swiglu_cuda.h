#pragma once
// SwiGLU on a CUDA device: y = SiLU(a) b of the two halves of a row, x = [a, b].
#include "prism/kernels/types.h"

struct CUstream_st;

namespace prism::kernels::cuda {

struct SwigluShape {
  Scalar dtype = Scalar::kFloat32;  ///< fp64, fp32, bf16 or fp16; arithmetic in fp32 (fp64 for fp64)
  int64_t rows = 0, width = 1;      ///< width of the result: x is [rows, 2 width]
};

/// x [rows, 2 width], y and dy [rows, width] and dx [rows, 2 width] are contiguous. Asynchronous on `stream`,
/// one launch. Returns nullptr, or the CUDA runtime's message when the launch fails.
const char* swiglu_forward(const SwigluShape& shape, const void* x, void* y, CUstream_st* stream);
/// da = dy b SiLU'(a), db = dy SiLU(a).
const char* swiglu_backward(const SwigluShape& shape, const void* x, const void* dy, void* dx,
                            CUstream_st* stream);

}  // namespace prism::kernels::cuda
