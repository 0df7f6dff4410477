#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "prism/ops/dropout.h"
#include "prism/ops/packing.h"

namespace prism {

/// o_i = sum_{j<=i} softmax_j(scale q_i k_j) v_j within each sequence; q [B,T,H,K], k [B,T,Hk,K], v
/// [B,T,Hk,V] (or packed, B = 1), H a multiple of Hk: head h reads key head h Hk / H. Returns [B,T,H,V].
/// Memory and time of packed sequences grow with the sum of squared lengths, not with the square of the sum.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const Packing& packing);

/// The queries of a sequence that continues one whose keys and values are cached: q [B,T,H,K]; k, v
/// [B,C,Hk,.] caches that already hold the new tokens; query i of row n sees the keys 0..past[n] + i.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const std::vector<int64_t>& past);

/// Rotary positions, half-split: channels (c, c + K/2) turn by position * theta^(-2c/K). x [...,H,K] with K
/// even; positions [...] int64 of x's leading shape. Differentiable once.
at::Tensor rope(const at::Tensor& x, const at::Tensor& positions, double theta = 10000.0);

}  // namespace prism
