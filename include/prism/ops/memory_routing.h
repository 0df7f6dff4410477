#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "prism/ops/packing.h"

namespace prism {

/// Tokens that are sent to several memories. Each memory sees the tokens sent to it as sequences of their
/// own, in order; routed tokens lie memory after memory, in each sequence after sequence. Every copy of a
/// token has one place, so gathering and combining are permutations: gradients have a fixed order on every
/// device.
class MemoryRouting {
 public:
  /// `chosen` int64 [tokens,k]: the memories of each token, distinct in a row. `offsets`: where the sequences
  /// of the tokens start, and the end. With `shared`, one more memory after the `memories` sees every token.
  MemoryRouting(const at::Tensor& chosen, const std::vector<int64_t>& offsets, int64_t memories, bool shared);

  /// Memories, the shared one included.
  int64_t memories() const { return memories_; }
  /// The routed tokens' sequences: number m N + n is sequence n in memory m.
  const Packing& packing() const { return packing_; }

  /// x [tokens,...] -> [1,routed,...].
  at::Tensor gather(const at::Tensor& x) const;
  /// x [tokens,memories,...], where every memory has its own -> [1,routed,...].
  at::Tensor gather_own(const at::Tensor& x) const;
  /// Sum over a token's memories of weights [tokens,k] (1 for the shared one) times o [1,routed,H,V] ->
  /// [tokens,H,V].
  at::Tensor combine(const at::Tensor& o, const at::Tensor& weights) const;

 private:
  int64_t tokens_, copies_, memories_;
  bool shared_;
  Packing packing_;
  at::Tensor from_, own_, back_;  // routed -> copy of a token, routed -> (token, memory), copy -> routed
};

/// Balance loss of Switch Transformers: M sum_m f_m p_m with f_m the share of all choices [tokens,k] that
/// fell on memory m and p_m the mean of probabilities [tokens,M]; 1 where both are uniform.
at::Tensor balance_loss(const at::Tensor& probabilities, const at::Tensor& chosen);

}  // namespace prism
