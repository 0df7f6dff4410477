#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace prism {

/// w0, w1, w2 of f(x) = w1 (SiLU(w0 x) * (w2 x)): [N,H,Dh,K], [N,H,V,Dh], [N,H,Dh,K].
using LactWeights = std::array<at::Tensor, 3>;

struct LactRule {
  int64_t chunk = 2048;
  bool muon = false;     ///< Newton-Schulz (lact_muon_steps) on each update
  bool prenorm = false;  ///< updates add to weights without the norm, which are normalised for use
};

/// What a sequence carries from chunk to chunk; fp32 (fp64 with fp64).
struct LactState {
  LactWeights weights;        ///< in use
  LactWeights sums = {};      ///< prenorm: before the norm; undefined: weights
  LactWeights momentum = {};  ///< the last update before Muon; undefined: 0
};

struct LactTokens {
  at::Tensor k, v, lr;                      ///< [B,T,H,K], [B,T,H,V], [B,T,H,3]; lr of w0, w1, w2
  std::optional<at::Tensor> momentum = {};  ///< [B,T,H] in (0,1); absent: no momentum
};

struct LactResult {
  at::Tensor o;     ///< [B,T,H,V] in q's type
  LactState state;  ///< of each sequence's last chunk, which has not updated it
};

/// LaCT (arXiv 2505.23884, code a1600012888/LaCT): chunk by chunk, o = f(q), then the weights take one step
/// on sum_i f(k_i) . v_i, with rates lr, momentum m dW_prev (m the chunk's mean), Muon, and every row back at
/// the norm it has in `initial` [H,.,.]. A sequence's last chunk never updates; at its start `state` is used.
/// q [B,T,H,K]; cu_seqlens int64 [N+1] with B = 1: packed. Composed of ATen operations, differentiable once.
LactResult lact(const at::Tensor& q, const LactTokens& tokens, const LactState& state,
                const LactWeights& initial, const LactRule& rule,
                const std::optional<at::Tensor>& cu_seqlens = {});

/// The parts of lact, for decoding. f of one token a sequence: q [N,H,K] -> [N,H,V].
at::Tensor lact_read(const LactWeights& weights, const at::Tensor& q);
/// The state after a whole chunk, tokens [N,C,H,.].
LactState lact_update(const LactState& state, const LactTokens& tokens, const LactWeights& initial,
                      const LactRule& rule);

}  // namespace prism
