#pragma once
// How a call is cut into independent pieces of work.
#include "kernels/common/chunks.h"
#include "prism/kernels/ttt_linear.h"

namespace prism::kernels {

/// One head of one sequence.
struct TttRow {
  int64_t sequence, head, first_batch;
};

/// Where the weights of (index, head) lie in [., H, K+1, K].
template <class T>
T* weights_at(T* base, const TttLinearShape& shape, int64_t index, int64_t head) {
  return base + (index * shape.heads + head) * (shape.width + 1) * shape.width;
}

}  // namespace prism::kernels
