// vector_gate with read_values, composed: o_t = scale S_t q_t, no erase. With A_ij = q_i . w_j and the decays
// of ChannelDecay, per chunk:
//   o_i = from_start_i (S0 q_i) + sum_{j<=i} A_ij exp(G_i - G_j) k_j,   S_C = diag(whole) S0 + (to_end k)^T w
// The output is what a key-read's query gradient is, and its own gradient what the products P = do d k are.
#include <ATen/ATen.h>

#include "channel_decay.h"
#include "dispatch.h"
#include "vector_gate_chunks.h"

namespace prism {
namespace {

using at::Tensor;

class ValueReadChunks {
 public:
  explicit ValueReadChunks(const GateCall& call)
      : call_(call),
        chunks_(call),
        decay_(chunks_.gates()),
        q_(chunks_.of_key_heads(call.q) * call.scale),
        k_(chunks_.of_key_heads(call.k)),
        w_(chunks_.of_value_heads(call.w)),
        A_(at::bmm(q_, w_.mT()).tril_()),
        whole_(decay_.whole().mT()) {}

  GateOutputs forward(bool return_final_state, bool save_states) const {
    const Tensor R = at::bmm((k_ * decay_.to_end()).mT(), w_);
    const Tensor buffer = chunks_.run_states([&](const Tensor& before, GateChunks::Range r) {
      return at::addcmul(R.narrow(0, r.begin, r.count), whole_.narrow(0, r.begin, r.count), before);
    });
    const Tensor starts = chunks_.starts(buffer), S0 = chunks_.matrices(starts);
    Tensor o = decay_.mixed(A_, k_);
    o.addcmul_(at::bmm(q_, S0.mT()), decay_.from_start(false));
    return {chunks_.value_heads_back(o, call_.q.scalar_type()),
            return_final_state ? chunks_.finals(buffer) : nothing(call_.g),
            save_states ? starts : nothing(call_.g)};
  }

  GateGradients backward(const Tensor& chunk_states, const std::optional<Tensor>& d_o,
                         const std::optional<Tensor>& d_final_state) {
    const Tensor S0 = chunks_.matrices(chunk_states), dO = chunks_.upstream(d_o);
    const Tensor gated = dO * decay_.from_start(false), H = at::bmm(gated.mT(), q_);
    const Tensor buffer = chunks_.run_gradients(d_final_state, [&](const Tensor& after, GateChunks::Range r) {
      return at::addcmul(H.narrow(0, r.begin, r.count), whole_.narrow(0, r.begin, r.count), after);
    });
    const Tensor dS = chunks_.after_chunks(buffer), to_end = decay_.to_end();

    const Tensor dA = decay_.scores(dO, false, k_.unsqueeze(1), true);
    const Tensor dq = at::bmm(gated, S0).baddbmm_(dA, w_);
    const Tensor dw = at::bmm(k_ * to_end, dS).baddbmm_(dA.mT(), q_);
    Tensor dk = at::bmm(w_, dS.mT()) * to_end;
    decay_.add_to_end(dk * k_);
    decay_.add_from_start(at::bmm(q_, S0.mT()) * gated, false);
    decay_.add_whole(((dS * S0).sum(-1, true) * whole_).mT());
    Tensor inside = at::zeros_like(dO), dk_by_key = dk.unsqueeze(1);
    decay_.add_gradients(A_, dO, false, k_.unsqueeze(1), true, inside, dk_by_key);

    const at::ScalarType type = call_.q.scalar_type();
    return {chunks_.key_heads_back(dq * call_.scale, type),
            chunks_.key_heads_back(dk, type),
            chunks_.value_heads_back(dw, type),
            chunks_.value_heads_back(decay_.gate_gradient(), call_.g.scalar_type()),
            nothing(call_.g),
            nothing(call_.g),
            nothing(call_.g),
            call_.initial_state ? chunks_.initial_gradient(buffer) : nothing(call_.g)};
  }

 private:
  const GateCall& call_;
  GateChunks chunks_;
  ChannelDecay decay_;
  Tensor q_, k_, w_, A_, whole_;  // [N,C,V] scaled, [N,C,K], [N,C,V], [N,C,C], [N,K,1]
};

}  // namespace

GateOutputs vector_gate_values_composed(const GateCall& call, bool return_final_state, bool save_states) {
  return ValueReadChunks(call).forward(return_final_state, save_states);
}

GateGradients vector_gate_values_composed_backward(const GateCall& call, const Tensor& chunk_states,
                                                   const std::optional<Tensor>& d_o,
                                                   const std::optional<Tensor>& d_final_state) {
  return ValueReadChunks(call).backward(chunk_states, d_o, d_final_state);
}

}  // namespace prism
