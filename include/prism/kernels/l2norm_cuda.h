#pragma once
// l2norm on a CUDA device: the functions of l2norm.h with device pointers and a stream.
#include "prism/kernels/l2norm.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// Asynchronous on `stream`; one launch, no host synchronisation, no allocation. Sums in fp32 (fp64 for
/// fp64). Returns nullptr, or what went wrong.
const char* l2norm_forward(const L2NormShape& shape, const View& x, void* y, CUstream_st* stream);
const char* l2norm_backward(const L2NormShape& shape, const View& x, const View& dy, void* dx,
                            CUstream_st* stream);

}  // namespace prism::kernels::cuda
