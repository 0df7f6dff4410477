#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "prism/mixers/mixer.h"

namespace prism {

/// Position of every token of x [B,T,...] in its sequence, after the `lengths` tokens seen before (empty:
/// none): int64 [B,T] on x's device.
at::Tensor token_positions(const at::Tensor& x, const Packing& packing, const std::vector<int64_t>& lengths);

/// The tokens of a call as rows of a grid, one row a sequence, and the caches [sequences, longest, ...] of a
/// state that they continue. state->lengths counts the tokens before the call.
class TokenGrid {
 public:
  /// The new tokens are those of x [B,T,...].
  TokenGrid(const at::Tensor& x, const Packing& packing, const MixerState* state);

  int64_t sequences() const { return static_cast<int64_t>(past_.size()); }
  /// Tokens of each sequence before the call, and after it.
  const std::vector<int64_t>& past() const { return past_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  bool is_start() const;

  /// The new tokens alone, each sequence from column 0: [B,T,...] -> [sequences, longest, ...].
  at::Tensor queries(const at::Tensor& x) const;
  /// Back again: the new tokens' places of a grid of queries.
  at::Tensor tokens(const at::Tensor& grid) const;
  /// A cache (undefined: an empty one) with the new tokens after the old ones.
  at::Tensor extended(const at::Tensor& cache, const at::Tensor& x) const;
  /// The same without gradients: in place where the cache has room, else with room for more, which holds
  /// zeros. A step writes its token instead of copying what was there.
  at::Tensor appended(const at::Tensor& cache, const at::Tensor& x) const;
  /// The columns that hold tokens.
  at::Tensor used(const at::Tensor& cache) const;

 private:
  std::vector<int64_t> past_, lengths_;
  std::vector<int64_t> shape_;            // of the tokens: {B, T}
  int64_t longest_ = 0, capacity_ = 0;    // of the new tokens; columns of the caches
  int64_t most_ = 0;                      // tokens of a sequence after the call
  at::Tensor query_places_, key_places_;  // of every new token in the flattened grids
};

/// Causal attention as in ops/attention.h. With a state, its keys and values "k", "v" [sequences, columns,
/// Hk, .] are continued: the new tokens are appended and seen; state->lengths still counts the tokens before
/// them. There are as many columns as the longest sequence has tokens, or more.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const Packing& packing, MixerState* state);

}  // namespace prism
