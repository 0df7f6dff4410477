#pragma once
// Products of tokens i >= j of a chunk through a decay a channel,
//   P_ij = sum_c x_ic exp(G_ic - G_jc) k_jc,   G the running sum of the log gates,
// without an exponent above zero. The gate sits inside the sum over channels, so it cannot be applied to a
// finished product; and exp(-G_j) alone overflows. Hence halving: of 2s tokens, the later s meet the earlier
// s with the gates split at the boundary, exp(gates after it up to i) and exp(gates after j up to it), as one
// matrix product; then the same inside each half, down to single tokens. Every pair is met once, at one
// level; the sums of a level are taken from the boundary, so nothing is added only to be subtracted again, in
// the gradient as well.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace prism {

/// Shapes: N chunks of C tokens (a power of two), K channels, L keys a token.
class ChannelDecay {
 public:
  explicit ChannelDecay(const at::Tensor& g_NCK);

  /// exp(G_i), or exp(G_{i-1}) with `before`; exp(G_C - G_j); exp(G_C) [N,1,K].
  at::Tensor from_start(bool before) const;
  at::Tensor to_end() const;
  at::Tensor whole() const;

  /// x [N,C,K], k [N,L,C,K] -> P [N,C,L*C] below the diagonal, and on it with `diagonal`. With `before`, the
  /// gate of x's own token is left out: G_{i-1} for G_i.
  at::Tensor scores(const at::Tensor& x, bool before, const at::Tensor& k, bool diagonal) const;
  /// sum_j A_ij exp(G_i - G_j) k_j over j <= i, for A [N,C,C] and k [N,C,K] -> [N,C,K].
  at::Tensor mixed(const at::Tensor& A, const at::Tensor& k) const;
  /// The gradient dP of scores(): adds to dx, dk (contiguous) and the gates' gradient.
  void add_gradients(const at::Tensor& dP, const at::Tensor& x, bool before, const at::Tensor& k,
                     bool diagonal, at::Tensor& dx, at::Tensor& dk);

  /// What else passes the gates: terms [N,C,K] of token i through exp(G_i) (exp(G_{i-1}) with `before`),
  /// terms of token j through exp(G_C - G_j), terms [N,1,K] through exp(G_C).
  void add_from_start(const at::Tensor& terms, bool before);
  void add_to_end(const at::Tensor& terms);
  void add_whole(const at::Tensor& terms) { dg_.add_(terms); }
  /// [N,C,K]
  const at::Tensor& gate_gradient() const { return dg_; }

 private:
  /// Blocks of 2s tokens; decays [N,m,s,K] of the later half from the boundary, of the earlier half up to it.
  struct Level {
    int64_t s, m;
    at::Tensor later, later_before, earlier;
  };
  /// Operands of one level's products: rows [N*m,s,K], keys [N*m,L*s,K].
  at::Tensor level_rows(const Level& level, const at::Tensor& x, bool before) const;
  at::Tensor level_keys(const Level& level, const at::Tensor& k) const;

  int64_t N_, C_, K_;
  at::Tensor g_, dg_;
  std::vector<Level> levels_;
};

}  // namespace prism
