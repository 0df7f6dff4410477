#pragma once
#include <ATen/core/Tensor.h>

#include "mini_batches.h"
#include "prism/ops/fast_weights.h"

namespace prism {

/// FastRule written out for every token t of a chunk in terms of the chunk's start. Row t of
///   S_t = decay_t S + sum_j sum_tj g_j,   A_t = keep_t A - carry_t S - sum_j into_tj g_j
/// Z (chunk, head) rows, C tokens; j runs over the window-1 tokens before the chunk and the C in it.
/// Undefined: keep 1; decay and carry 0, there is no S.
struct Mixing {
  at::Tensor keep, carry, decay;  ///< [Z,C,1]
  at::Tensor into, sum;           ///< [Z,C,J]
  at::Tensor apply;               ///< [Z,C,C]: A_t = keep_t A - sum_s apply_ts D(S_s)

  /// With a gate a value channel: keep [Z,C,V], into [Z,V,C,C], and nothing else.
  bool by_channel() const { return into.dim() == 4; }
};

Mixing make_mixing(const FastRule& rule, const MiniBatches& batches);

}  // namespace prism
