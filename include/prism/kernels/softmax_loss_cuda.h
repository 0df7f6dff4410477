#pragma once
// Softmax cross entropy over rows of scores on a CUDA device, and its gradient, in one pass.
#include "prism/kernels/types.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// Scores [rows, stride], the first `columns` of a row being its candidates. `stride` is a multiple of 8.
struct SoftmaxLossShape {
  Scalar gradient = Scalar::kBFloat16;  ///< type of the gradients: bf16, fp16 or fp32
  int64_t rows = 0, columns = 1, stride = 8;
};

/// With s = scores[i] and t = targets[i] in [0, columns):
///   losses[i] = log sum_j exp(s_j) - s_t,   gradients[i][j] = exp(s_j) / sum exp(s) - [j = t]
/// in fp32, rounded once; gradients [rows, stride] are 0 beyond the columns, and may be the scores' own
/// memory in fp32. All addresses are multiples of 16 bytes. Asynchronous on `stream`, one launch, sums in a
/// fixed order. Returns nullptr, or the CUDA runtime's message when the launch fails.
const char* softmax_loss(const SoftmaxLossShape& shape, const float* scores, const int64_t* targets,
                         void* gradients, float* losses, CUstream_st* stream);

}  // namespace prism::kernels::cuda
