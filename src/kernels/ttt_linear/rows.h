#pragma once
// How a call is cut into independent pieces of work.
#include <vector>

#include "prism/kernels/ttt_linear.h"

namespace prism::kernels {

/// One head of one sequence.
struct TttRow {
  int64_t sequence, head, first_batch;
};

/// Index of the first mini-batch of every sequence, and the number of all of them at the end.
inline std::vector<int64_t> first_batches(const TttLinearShape& shape) {
  std::vector<int64_t> first(shape.sequences.count + 1, 0);
  for (int64_t n = 0; n < shape.sequences.count; ++n) {
    const int64_t length = shape.sequences.offsets[n + 1] - shape.sequences.offsets[n];
    first[n + 1] = first[n] + (length + shape.mini_batch - 1) / shape.mini_batch;
  }
  return first;
}

/// Where the weights of (index, head) lie in [., H, K+1, K].
template <class T>
T* weights_at(T* base, const TttLinearShape& shape, int64_t index, int64_t head) {
  return base + (index * shape.heads + head) * (shape.width + 1) * shape.width;
}

}  // namespace prism::kernels
