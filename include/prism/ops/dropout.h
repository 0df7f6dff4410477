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
  /// On a GPU, or undefined: int64 copies of `seed` and of the seeds of its places, which a kernel reads when
  /// it runs, so that a recorded graph draws anew when they change. [n,m] for places that have places: row i
  /// holds the seed of at(i) and those of at(i).at(0), at(i).at(1), ...; a row [m] for a place; [1] at the
  /// end.
  at::Tensor staged = {};
  /// The stream of one of several places that share `seed`.
  Dropout at(uint64_t place) const;
  /// A table for `staged`, on the host: `places` places with `each` places of their own.
  at::Tensor seeds(int64_t places, int64_t each) const;
};

/// x m / (1 - rate) with m in {0, 1}; x itself when the rate is 0. Differentiable once. Error for a staged
/// seed where no CUDA kernel serves.
at::Tensor dropout(const at::Tensor& x, const Dropout& drop);

/// residual + dropout(x), in one pass. residual and x of one shape; the result has residual's dtype.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop);

}  // namespace prism
