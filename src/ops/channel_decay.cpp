#include "channel_decay.h"

#include <ATen/ATen.h>

namespace prism {
namespace {

using at::Tensor;

Tensor prefix(const Tensor& x, int64_t dim) { return x.cumsum(dim); }
Tensor suffix(const Tensor& x, int64_t dim) { return x.flip(dim).cumsum(dim).flip(dim); }

/// The sums without each entry's own: moved on by one along `dim`, zeros entering.
Tensor moved_down(const Tensor& x, int64_t dim) {
  const Tensor zero = at::zeros_like(x.narrow(dim, 0, 1));
  return at::cat({zero, x.narrow(dim, 0, x.size(dim) - 1)}, dim);
}
Tensor moved_up(const Tensor& x, int64_t dim) {
  const Tensor zero = at::zeros_like(x.narrow(dim, 0, 1));
  return at::cat({x.narrow(dim, 1, x.size(dim) - 1), zero}, dim);
}

/// x [N,C,K] as blocks of two halves: half 0 or 1, [N,m,s,K].
Tensor half_of(const Tensor& x, int64_t m, int64_t s, int64_t half) {
  return x.view({x.size(0), m, 2, s, x.size(2)}).select(2, half);
}
/// k [N,L,C,K] likewise: the earlier halves, [N,m,L,s,K].
Tensor earlier_keys(const Tensor& k, int64_t m, int64_t s) {
  return k.view({k.size(0), k.size(1), m, 2, s, k.size(3)}).select(3, 0).transpose(1, 2);
}
/// The blocks of P [N,C,L*C] where later halves meet earlier ones: [N,m,s,L,s].
Tensor blocks_of(const Tensor& P, int64_t m, int64_t s) {
  const int64_t N = P.size(0), L = P.size(2) / P.size(1);
  const Tensor meetings = P.view({N, m, 2, s, L, m, 2, s}).select(2, 1).select(5, 0);
  return meetings.diagonal(0, 1, 4).permute({0, 4, 1, 2, 3});
}
/// The diagonals of P [N,C,L*C]: [N,L,C].
Tensor diagonals_of(const Tensor& P) {
  const int64_t C = P.size(1);
  return P.view({P.size(0), C, P.size(2) / C, C}).diagonal(0, 1, 3);
}

}  // namespace

ChannelDecay::ChannelDecay(const Tensor& g_NCK)
    : N_(g_NCK.size(0)), C_(g_NCK.size(1)), K_(g_NCK.size(2)), g_(g_NCK), dg_(at::zeros_like(g_NCK)) {
  for (int64_t s = 1; s < C_; s *= 2) {
    const int64_t m = C_ / (2 * s);
    const Tensor after = prefix(half_of(g_, m, s, 1), 2);
    levels_.push_back(
        {s, m, after.exp(), moved_down(after, 2).exp(), moved_up(suffix(half_of(g_, m, s, 0), 2), 2).exp()});
  }
}

Tensor ChannelDecay::from_start(bool before) const {
  const Tensor G = prefix(g_, 1);
  return (before ? moved_down(G, 1) : G).exp();
}
Tensor ChannelDecay::to_end() const { return moved_up(suffix(g_, 1), 1).exp(); }
Tensor ChannelDecay::whole() const { return g_.sum(1, true).exp(); }

Tensor ChannelDecay::level_rows(const Level& level, const Tensor& x, bool before) const {
  const Tensor& decay = before ? level.later_before : level.later;
  return (half_of(x, level.m, level.s, 1) * decay).view({-1, level.s, K_});
}
Tensor ChannelDecay::level_keys(const Level& level, const Tensor& k) const {
  const Tensor decayed = earlier_keys(k, level.m, level.s) * level.earlier.unsqueeze(2);
  return decayed.reshape({-1, k.size(1) * level.s, K_});
}

Tensor ChannelDecay::scores(const Tensor& x, bool before, const Tensor& k, bool diagonal) const {
  const int64_t L = k.size(1);
  Tensor P = at::zeros({N_, C_, L * C_}, x.options());
  for (const Level& level : levels_) {
    const Tensor block = at::bmm(level_rows(level, x, before), level_keys(level, k).transpose(1, 2));
    blocks_of(P, level.m, level.s).copy_(block.view({N_, level.m, level.s, L, level.s}));
  }
  if (diagonal) diagonals_of(P).copy_((x.unsqueeze(1) * k).sum(-1));
  return P;
}

Tensor ChannelDecay::mixed(const Tensor& A, const Tensor& k) const {
  Tensor y = at::diagonal(A, 0, 1, 2).unsqueeze(-1) * k;
  for (const Level& level : levels_) {
    const Tensor block = blocks_of(A, level.m, level.s).reshape({-1, level.s, level.s});
    const Tensor sums = at::bmm(block, level_keys(level, k.unsqueeze(1)));
    half_of(y, level.m, level.s, 1).addcmul_(sums.view({N_, level.m, level.s, K_}), level.later);
  }
  return y;
}

void ChannelDecay::add_gradients(const Tensor& dP, const Tensor& x, bool before, const Tensor& k,
                                 bool diagonal, Tensor& dx, Tensor& dk) {
  const int64_t L = k.size(1);
  if (diagonal) {
    const Tensor d = diagonals_of(dP).unsqueeze(-1);  // [N,L,C,1]
    dx.add_((d * k).sum(1));
    dk.addcmul_(d, x.unsqueeze(1));
  }
  for (const Level& level : levels_) {
    const int64_t m = level.m, s = level.s;
    const Tensor block = blocks_of(dP, m, s).reshape({-1, s, L * s});
    const Tensor rows = level_rows(level, x, before), keys = level_keys(level, k);
    const Tensor d_rows = at::bmm(block, keys), d_keys = at::bmm(block.transpose(1, 2), rows);
    half_of(dx, m, s, 1).addcmul_(d_rows.view({N_, m, s, K_}), before ? level.later_before : level.later);
    earlier_keys(dk, m, s).addcmul_(d_keys.view({N_, m, L, s, K_}), level.earlier.unsqueeze(2));
    const Tensor after = suffix((d_rows * rows).view({N_, m, s, K_}), 2);
    half_of(dg_, m, s, 1).add_(before ? moved_up(after, 2) : after);
    const Tensor up_to = prefix((d_keys * keys).view({N_, m, L, s, K_}).sum(2), 2);
    half_of(dg_, m, s, 0).add_(moved_down(up_to, 2));
  }
}

void ChannelDecay::add_from_start(const Tensor& terms, bool before) {
  const Tensor after = suffix(terms, 1);
  dg_.add_(before ? moved_up(after, 1) : after);
}
void ChannelDecay::add_to_end(const Tensor& terms) { dg_.add_(moved_down(prefix(terms, 1), 1)); }

}  // namespace prism
