#pragma once
#include <ATen/core/Tensor.h>

#include "prism/mixers/mixer.h"

namespace prism {

/// Position of every token of x [B,T,...] in its sequence, after the `lengths` tokens seen before (empty:
/// none): int64 [B,T] on x's device.
at::Tensor token_positions(const at::Tensor& x, const Packing& packing, const std::vector<int64_t>& lengths);

/// Causal attention as in ops/attention.h. With a state, its keys and values "k", "v" [sequences, longest,
/// Hk,
/// .] are continued: the new tokens are appended and seen; state->lengths still counts the tokens before
/// them.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const Packing& packing, MixerState* state);

}  // namespace prism
