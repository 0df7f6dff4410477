// vector_gate from ATen operations, for any device: everything inside the chunks for all of them at once,
// then one batched product a chunk position for the states. An erase is a write of its own: keys k_1 = e, k_2
// = k with values U = -u b and w; where e is k they share one key and U = w - b u. Per chunk, with d the
// decays of ChannelDecay:
//   P_l = q d k_l,  N_l = p d k_l (strict);   T = (I + b N_1)^-1;  Y = T b (p from_start)
//   X = T (w_1 - b sum_{l>1} N_l w_l);  U = X - Y S0
//   S_C = M S0 + R,   M = diag(whole) - (to_end k_1)^T Y,   R = (to_end k_1)^T X + sum_{l>1} (to_end k_l)^T
//   w_l o = (q from_start) S0 + P_1 U + sum_{l>1} P_l w_l
// Without an erase M is diagonal and X = w. The backward recomputes this from the inputs and the chunk-start
// states; its state pass is dS0 = M^T dS_C + (q from_start - P_1 Y)^T do. Shapes: N = Z H chunks of all value
// heads, J key heads, L keys, C tokens a chunk.
#include <ATen/ATen.h>

#include "channel_decay.h"
#include "dispatch.h"
#include "vector_gate_chunks.h"

namespace prism {
namespace {

using at::Tensor;

/// Everything about the chunks that does not depend on a state.
class EraseChunks {
 public:
  explicit EraseChunks(const GateCall& call)
      : call_(call),
        chunks_(call),
        decay_(chunks_.gates()),
        whole_(decay_.whole().mT()),
        L_(call.erase_key ? 2 : 1),
        C_(call.chunk),
        V_(call.value_width()) {
    load();
    products();
    if (call_.erases()) solve();
  }

  GateOutputs forward(bool return_final_state, bool save_states);
  GateGradients backward(const Tensor& chunk_states, const std::optional<Tensor>& d_o,
                         const std::optional<Tensor>& d_final_state);

 private:
  void load();
  void products();
  void solve();
  /// M applied to states, or its transpose, plus `added`.
  Tensor moved(const Tensor& states, const Tensor& added, GateChunks::Range chunks, bool transpose) const;
  /// Fills in the pseudo values: values_1 = U = X - Y S0.
  void add_states(const Tensor& starts) {
    if (call_.erases()) values_.narrow(1, 0, C_).baddbmm_(Y_, starts, 1, -1);
  }
  Tensor first(const Tensor& x) const { return x.narrow(1, 0, C_); }
  Tensor later(const Tensor& x) const { return x.narrow(1, C_, (L_ - 1) * C_); }
  Tensor keys_by_token() const { return decayed_keys_.view({-1, L_ * C_, call_.key_width()}); }

  struct Erased {
    Tensor db, dp;
  };
  Erased erase_gradients(const Tensor& S0, const Tensor& dvalues, Tensor& dk);

  const GateCall& call_;
  GateChunks chunks_;
  ChannelDecay decay_;
  Tensor whole_;  // [N,K,1]
  int64_t L_, C_, V_;
  Tensor q_, p_, k_, b_;           // [N,C,K] scaled, [N,C,K], [N,L,C,K], [N,C,1]
  Tensor gq_, gp_, decayed_keys_;  // from the start [N,C,K], to the end [N,L,C,K]
  Tensor P_, N_;                   // [N,C,L*C]
  Tensor T_, Y_, values_;          // [N,C,C], [N,C,K], (X or U, w_2) or (w) [N,L*C,V]
};

void EraseChunks::load() {
  q_ = chunks_.of_key_heads(call_.q) * call_.scale;
  const Tensor k = chunks_.of_key_heads(call_.k), w = chunks_.of_value_heads(call_.w);
  if (L_ == 1) {
    k_ = k.unsqueeze(1);
    values_ = w;
  } else {
    k_ = at::stack({chunks_.of_key_heads(*call_.erase_key), k}, 1);
    values_ = at::cat({at::zeros_like(w), w}, 1);
  }
  if (!call_.erases()) return;
  p_ = call_.erase_read ? chunks_.of_key_heads(*call_.erase_read) : k;
  b_ = call_.b ? chunks_.of_value_heads(call_.b->unsqueeze(-1)) : at::ones({k.size(0), C_, 1}, k.options());
}

void EraseChunks::products() {
  gq_ = q_ * decay_.from_start(false);
  decayed_keys_ = k_ * decay_.to_end().unsqueeze(1);
  P_ = decay_.scores(q_, false, k_, true);
  if (!call_.erases()) return;
  gp_ = p_ * decay_.from_start(call_.erase_undecayed);
  N_ = decay_.scores(p_, call_.erase_undecayed, k_, false);
}

void EraseChunks::solve() {
  // Substitution, in double for fp32: exact for identical keys and b = 2, as in prism_chunk.
  Tensor A = b_ * N_.narrow(2, 0, C_);
  if (call_.q.scalar_type() == at::kFloat) A = A.to(at::kDouble);
  T_ = at::linalg_solve_triangular(A, at::eye(C_, A.options()).expand_as(A), /*upper=*/false, /*left=*/true,
                                   /*unitriangular=*/true)
           .to(b_.scalar_type());
  Y_ = at::bmm(T_, b_ * gp_);
  Tensor x = first(values_);
  if (L_ > 1) x = x - b_ * at::bmm(N_.narrow(2, C_, C_), later(values_));
  x = at::bmm(T_, x);
  values_ = L_ > 1 ? at::cat({x, later(values_)}, 1) : x;
}

Tensor EraseChunks::moved(const Tensor& states, const Tensor& added, GateChunks::Range chunks,
                          bool transpose) const {
  const auto part = [&](const Tensor& x) { return x.narrow(0, chunks.begin, chunks.count); };
  Tensor next = at::addcmul(added, part(whole_), states);
  if (!call_.erases()) return next;
  const Tensor key = part(decayed_keys_).select(1, 0), Y = part(Y_);
  return transpose ? next.baddbmm_(Y.mT(), at::bmm(key, states), 1, -1)
                   : next.baddbmm_(key.mT(), at::bmm(Y, states), 1, -1);
}

GateOutputs EraseChunks::forward(bool return_final_state, bool save_states) {
  const Tensor R = at::bmm(keys_by_token().mT(), values_);
  const Tensor buffer = chunks_.run_states([&](const Tensor& before, GateChunks::Range range) {
    return moved(before, R.narrow(0, range.begin, range.count), range, false);
  });
  const Tensor starts = chunks_.starts(buffer), S0 = chunks_.matrices(starts);
  add_states(S0);
  const Tensor o = at::bmm(gq_, S0).baddbmm_(P_, values_);
  return {chunks_.value_heads_back(o, call_.q.scalar_type()),
          return_final_state ? chunks_.finals(buffer) : nothing(call_.g),
          save_states ? starts : nothing(call_.g)};
}

GateGradients EraseChunks::backward(const Tensor& chunk_states, const std::optional<Tensor>& d_o,
                                    const std::optional<Tensor>& d_final_state) {
  const Tensor S0 = chunks_.matrices(chunk_states), dO = chunks_.upstream(d_o);
  add_states(S0);
  const Tensor reads = call_.erases() ? at::baddbmm(gq_, P_.narrow(2, 0, C_), Y_, 1, -1) : gq_;
  const Tensor H = at::bmm(reads.mT(), dO);
  const Tensor buffer =
      chunks_.run_gradients(d_final_state, [&](const Tensor& after, GateChunks::Range range) {
        return moved(after, H.narrow(0, range.begin, range.count), range, true);
      });
  const Tensor dS = chunks_.after_chunks(buffer);
  Tensor dvalues = at::bmm(P_.mT(), dO).baddbmm_(keys_by_token(), dS);

  Tensor dk = (at::bmm(values_, dS.mT()).view_as(k_) * decay_.to_end().unsqueeze(1));
  decay_.add_to_end((dk * k_).sum(1));
  const Tensor through_q = at::bmm(dO, S0.mT());
  Tensor dq = through_q * decay_.from_start(false);
  decay_.add_from_start(through_q * gq_, false);
  decay_.add_whole(((dS * S0).sum(-1, true) * whole_).mT());
  Erased erased;
  if (call_.erases()) erased = erase_gradients(S0, dvalues, dk);
  decay_.add_gradients(at::bmm(dO, values_.mT()), q_, false, k_, true, dq, dk);

  const at::ScalarType type = call_.q.scalar_type();
  Tensor dkey = dk.select(1, L_ - 1);
  if (call_.erases() && !call_.erase_read) dkey = dkey + erased.dp;
  return {chunks_.key_heads_back(dq * call_.scale, type),
          chunks_.key_heads_back(dkey, type),
          chunks_.value_heads_back(dvalues.narrow(1, (L_ - 1) * C_, C_), type),
          chunks_.value_heads_back(decay_.gate_gradient(), call_.g.scalar_type()),
          call_.b ? chunks_.value_heads_back(erased.db, call_.g.scalar_type()).squeeze(-1) : nothing(call_.g),
          call_.erase_read ? chunks_.key_heads_back(erased.dp, type) : nothing(call_.g),
          call_.erase_key ? chunks_.key_heads_back(dk.select(1, 0), type) : nothing(call_.g),
          call_.initial_state ? chunks_.initial_gradient(buffer) : nothing(call_.g)};
}

/// The solve and the erase's reads: dvalues_1 becomes the gradient of w_1, and dZ is that of
/// Z = (p from_start) S0 + sum_l N_l (U or w_l), which b subtracts from w_1.
EraseChunks::Erased EraseChunks::erase_gradients(const Tensor& S0, const Tensor& dvalues, Tensor& dk) {
  const bool before = call_.erase_undecayed;
  const Tensor dfirst = at::bmm(T_.mT(), first(dvalues)), dZ = dfirst * b_.neg();
  const Tensor Z = at::bmm(gp_, S0).baddbmm_(N_, values_);
  const Tensor db = (dfirst * Z).sum(-1, true).neg_();
  first(dvalues).copy_(dfirst);
  if (L_ > 1) later(dvalues).baddbmm_(N_.narrow(2, C_, C_).mT(), dZ);
  const Tensor through = at::bmm(dZ, S0.mT());
  Tensor dp = through * decay_.from_start(before);
  decay_.add_from_start(through * gp_, before);
  decay_.add_gradients(at::bmm(dZ, values_.mT()), p_, before, k_, false, dp, dk);
  return {db, dp};
}

}  // namespace

GateOutputs vector_gate_composed(const GateCall& call, bool return_final_state, bool save_states) {
  if (call.read_values) return vector_gate_values_composed(call, return_final_state, save_states);
  return EraseChunks(call).forward(return_final_state, save_states);
}

GateGradients vector_gate_composed_backward(const GateCall& call, const at::Tensor& chunk_states,
                                            const std::optional<at::Tensor>& d_o,
                                            const std::optional<at::Tensor>& d_final_state) {
  if (call.read_values) return vector_gate_values_composed_backward(call, chunk_states, d_o, d_final_state);
  return EraseChunks(call).backward(chunk_states, d_o, d_final_state);
}

}  // namespace prism
