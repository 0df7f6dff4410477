#pragma once
// prism_refine on a CUDA device: the functions of prism_refine.h with device pointers and a stream.
#include "prism/kernels/prism_refine.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// L up to this runs here; more is an error of the caller.
inline constexpr int64_t kMaxRefineSteps = 4;

/// Asynchronous on `stream`; one launch, no host synchronisation, no allocation. Pointers as in
/// prism_refine.h. Returns nullptr, or the CUDA runtime's message when the launch fails.
const char* prism_refine_forward(const PrismRefineShape& shape, const PrismRefineInputs& in, void* w,
                                 void* delta, void* residual, CUstream_st* stream);

/// Asynchronous on `stream`; one launch. Sums over the width run in a fixed order, so repeats are bit-equal.
const char* prism_refine_backward(const PrismRefineShape& shape, const PrismRefineInputs& in, const View& dw,
                                  const View& ddelta, const View& dresidual, const PrismRefineGradients& out,
                                  CUstream_st* stream);

}  // namespace prism::kernels::cuda
