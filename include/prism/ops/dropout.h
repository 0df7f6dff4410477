#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace prism {

/// A place where dropout happens, in one training step: the rate and the seed of its mask. Whether channel c
/// of row n (all dimensions but the last, flattened) is kept is a hash of (seed, row + n, c): no generator
/// state, the same mask on every device and thread count, however the rows of a step are cut into batches,
/// and recomputed in backward instead of stored.
struct Dropout {
  double rate = 0;
  uint64_t seed = 0;
  int64_t row = 0;  ///< place of the first row among those of the whole step
  /// The stream of one of several places that share `seed`.
  Dropout at(uint64_t place) const;
};

/// x m / (1 - rate) with m in {0, 1}; x itself when the rate is 0. Differentiable once.
at::Tensor dropout(const at::Tensor& x, const Dropout& drop);

/// residual + dropout(x), in one pass. residual and x of one shape; the result has residual's dtype.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop);

}  // namespace prism
