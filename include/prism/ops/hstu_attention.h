#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace prism {

/// Sequences in a grid: row s holds the keys of `lengths[s]` tokens from column 0, and the queries of the
/// tokens from `past[s]` on. What lies beyond a sequence's length is ignored; its outputs are 0.
struct HstuArgs {
  at::Tensor q;      ///< [S,Q,H,K]: query i of row s stands at position past[s] + i
  at::Tensor k, v;   ///< [S,C,H,K], [S,C,H,V]
  at::Tensor pos_w;  ///< [2n-1] bias by relative position
  at::Tensor ts_w;   ///< [buckets+1] bias by elapsed time; undefined: none
  /// int64 [S,C] and [S,Q], needed beside ts_w: when the keys' tokens were, and the time that each query
  /// looks back from, which HSTU sets to that of the event after it.
  at::Tensor seconds, query_seconds;
  std::vector<int64_t> past, lengths;
  int64_t n = 0;  ///< most tokens of a sequence
};

/// Pointwise attention of HSTU (arXiv 2402.17152), no softmax: o_i = 1/n sum_{j<=i} SiLU(q_i . k_j + rab_ij)
/// v_j, [S,Q,H,V], with rab_ij = pos_w[(j-i)+n-1] + ts_w[bucket(query_seconds_i - seconds_j)] and bucket(d) =
/// min(buckets, trunc(ln(max(1,|d|)) / 0.301)).
/// Differentiable once in q, k, v, pos_w and ts_w; the sums over a bucket have a fixed order.
at::Tensor hstu_attention(const HstuArgs& args);

}  // namespace prism
