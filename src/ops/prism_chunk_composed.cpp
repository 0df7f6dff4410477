// prism_chunk from ATen operations, for any device: everything inside the chunks for all of them at once,
// then one batched product a chunk position for the states. With e the erase read, per chunk (docs/prism.md,
// chunkwise form):
//   Gam_ij = exp(G_i - G_j);   N_l = strict(Gam * e k_l^T);   P_l = lower(Gam * q k_l^T);   T = (I + b
//   N_1)^-1 X = T (w_1 - b sum_{l>1} N_l w_l);   Y = T (b gam e);   U = X - Y S0 S_C = M S0 + R,   M = gam_C
//   I - (dec k_1)^T Y,   R = (dec k_1)^T X + sum_{l>1} (dec k_l)^T w_l o = gam q S0 + P_1 U + sum_{l>1} P_l
//   w_l
// The backward recomputes this from the inputs and the chunk-start states; its state pass is dS0 = M^T dS_C +
// H, H = (gam q - P_1 Y)^T do. Shapes: Z chunks, H value heads, J key heads, L steps, C tokens a chunk.
#include <ATen/ATen.h>

#include <utility>

#include "arguments.h"
#include "chunk_layout.h"
#include "dispatch.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;

/// x [..., m, n] as the batch of matrices that bmm takes.
Tensor matrices(const Tensor& x) { return x.reshape({-1, x.size(-2), x.size(-1)}); }

/// The last pass over a gate's sums, free of differences: x_ij contributes to every g_t with j < t <= i.
Tensor sum_over_spans(const Tensor& x_BCC) {
  const Tensor upper = at::ones({x_BCC.size(-1), x_BCC.size(-1)}, x_BCC.options()).triu();
  return at::matmul(upper, x_BCC).tril_(-1).sum(-1);
}

/// Everything about the chunks that does not depend on a state.
class Chunks {
 public:
  explicit Chunks(const ChunkCall& call)
      : call_(call),
        layout_(sequence_offsets(call.cu_seqlens, call.batch(), call.tokens()), call.cu_seqlens.has_value(),
                call.chunk, call.q.device()),
        type_(gate_type(call.q.scalar_type())),
        H_(call.heads()),
        J_(call.key_heads()),
        L_(call.steps()),
        C_(call.chunk),
        K_(call.key_width()),
        V_(call.value_width()) {
    load();
    decays();
    products();
    solve();
  }

  ChunkOutputs forward(bool return_final_state, bool save_states);
  ChunkGradients backward(const Tensor& chunk_states, const std::optional<Tensor>& d_o,
                          const std::optional<Tensor>& d_final_state);

 private:
  void load();
  void decays();
  void products();
  void solve();
  Tensor transition() const;
  Tensor run_states();
  Tensor run_state_gradients(const Tensor& d_o, const std::optional<Tensor>& d_final_state) const;
  /// A product with T or its transpose, in T's precision.
  Tensor solved(const Tensor& T, const Tensor& x) const {
    return at::bmm(T, x.to(T.scalar_type())).to(type_);
  }
  /// Fills in the pseudo values: vals_1 = U = X - Y S0.
  void add_states(const Tensor& starts) { values_.narrow(1, 0, C_).baddbmm_(Y_, starts, 1, -1); }

  /// [Z,J,A,C,W] of key heads times gates [Z*H,A or 1,C,1] of value heads -> [Z*H,A*C,W].
  Tensor gated(const Tensor& x_ZJACW, const Tensor& gate_BC) const {
    const Tensor gate = gate_BC.view({-1, J_, H_ / J_, 1, C_, 1});
    return (x_ZJACW.unsqueeze(2) * gate).view({-1, x_ZJACW.size(2) * C_, x_ZJACW.size(-1)});
  }
  /// Products of key heads [Z*J,C,A*C] times decays of value heads [Z*H,C,C] -> [Z*H,C,A*C].
  Tensor decayed(const Tensor& x, const Tensor& decay_BCC) const {
    const int64_t A = x.size(-1) / C_;
    const Tensor decay = decay_BCC.view({-1, H_ / J_, C_, 1, C_});
    return (x.view({-1, 1, C_, A, C_}) * decay).view({-1, C_, A * C_});
  }
  /// Gradients of products [Z*H,C,L*C] times decays [Z*H,C,C].
  Tensor decayed_rows(const Tensor& x, const Tensor& decay_BCC) const {
    return (x.view({-1, C_, L_, C_}) * decay_BCC.unsqueeze(2)).view({-1, C_, L_ * C_});
  }
  /// Sums a gradient [Z*H,...] over the value heads of each key head -> [Z*J,...].
  Tensor by_key_head(const Tensor& x) const {
    return H_ == J_ ? x : x.view({-1, H_ / J_, x.size(-2), x.size(-1)}).sum(1);
  }
  Tensor scatter(const Tensor& x, int64_t heads, int64_t steps, int64_t width, at::ScalarType type) const {
    return layout_.scatter(x.view({layout_.chunks(), heads, steps, C_, width}), type);
  }

  const ChunkCall& call_;
  ChunkLayout layout_;
  at::ScalarType type_;
  int64_t H_, J_, L_, C_, K_, V_;
  Tensor q_, k_, e_, w_, b_;       // [Z,J,1,C,K] scaled, [Z,J,L,C,K], [Z,J,1,C,K], [Z*H,L*C,V], [Z*H,C,1]
  Tensor gam_, dec_, Gam_, last_;  // [Z*H,C], [Z*H,C], [Z*H,C,C] lower, [Z*H,1,1]
  Tensor gq_, ge_, dk_;            // gam q and gam e [Z*H,C,K], dec k [Z*H,L*C,K]
  Tensor qk_, ek_, P_, N_;         // [Z*J,C,L*C] ungated, [Z*H,C,L*C]
  Tensor T_, Y_, values_;          // [Z*H,C,C], [Z*H,C,K], (X or U, w_2..) [Z*H,L*C,V]
};

void Chunks::load() {
  const auto heads_last = [](const Tensor& gate) { return gate.unsqueeze(2).unsqueeze(-1); };
  q_ = layout_.gather(call_.q.unsqueeze(2), type_).mul_(call_.scale);
  k_ = layout_.gather(call_.k, type_);
  e_ = call_.erase_read ? layout_.gather(call_.erase_read->unsqueeze(2), type_) : k_.narrow(2, 0, 1);
  w_ = layout_.gather(call_.w, type_).view({-1, L_ * C_, V_});
  b_ = layout_.gather(heads_last(call_.b), type_).view({-1, C_, 1});
}

void Chunks::decays() {
  // Sums of gates in double: in float a weak gate after strong ones loses its digits. Below exp's range all
  // gates are the same zero; the floor keeps -inf out of the differences.
  const Tensor g = layout_.gather(call_.g.unsqueeze(2).unsqueeze(-1), at::kDouble).clamp_min_(-1000.0);
  const Tensor G = g.view({-1, C_}).cumsum(-1);
  gam_ = G.to(type_).exp();  // not in place: in double this is G itself
  last_ = gam_.narrow(1, C_ - 1, 1).unsqueeze(-1);
  dec_ = (G.narrow(1, C_ - 1, 1) - G).to(type_).exp_();
  const Tensor future = at::ones({C_, C_}, G.options().dtype(at::kBool)).triu_(1);
  Gam_ = (G.unsqueeze(-1) - G.unsqueeze(-2)).to(type_).masked_fill_(future, -INFINITY).exp_();
}

void Chunks::products() {
  gq_ = gated(q_, gam_);
  ge_ = gated(e_, gam_);
  dk_ = gated(k_, dec_);
  const Tensor keys = k_.view({-1, L_ * C_, K_}).mT();
  qk_ = at::bmm(matrices(q_), keys);
  ek_ = at::bmm(matrices(e_), keys);
  P_ = decayed(qk_, Gam_);
  N_ = decayed(ek_, Gam_.tril(-1));
}

void Chunks::solve() {
  // Substitution, row by row: exact for identical keys and b = 2, where series for the inverse diverge. There
  // the entries of T alternate at full size for the whole chunk; T and its products in double keep the fp32
  // path within 1e-5.
  Tensor A = b_ * N_.narrow(2, 0, C_);
  if (call_.q.scalar_type() == at::kFloat) A = A.to(at::kDouble);
  T_ = at::linalg_solve_triangular(A, at::eye(C_, A.options()).expand_as(A), /*upper=*/false, /*left=*/true,
                                   /*unitriangular=*/true);
  Y_ = solved(T_, b_ * ge_);
  if (L_ == 1) {
    values_ = solved(T_, w_);
    return;
  }
  const int64_t later = (L_ - 1) * C_;
  const Tensor w_later = w_.narrow(1, C_, later);
  const Tensor first = w_.narrow(1, 0, C_) - b_ * at::bmm(N_.narrow(2, C_, later), w_later);
  values_ = at::cat({solved(T_, first), w_later}, 1);
}

Tensor Chunks::transition() const {
  const Tensor identity = at::eye(K_, Y_.options()) * last_;
  return at::baddbmm(identity, dk_.narrow(1, 0, C_).mT(), Y_, 1, -1);
}

/// The state buffer (see ChunkLayout), forward in time.
Tensor Chunks::run_states() {
  const int64_t N = layout_.sequences(), Z = layout_.chunks();
  Tensor buffer = at::empty({N + Z, H_, K_, V_}, w_.options());
  Tensor start = buffer.narrow(0, 0, N);
  if (call_.initial_state) {
    start.copy_(layout_.sorted(*call_.initial_state));
  } else {
    start.zero_();
  }
  const Tensor M = transition(), R = at::bmm(dk_.mT(), values_);
  for (int64_t p = 0; p < layout_.positions(); ++p) {
    const auto [begin, count] = layout_.chunks_at(p);
    const Tensor before = matrices(buffer.narrow(0, layout_.before(p).begin, count));
    Tensor after = matrices(buffer.narrow(0, layout_.after(p).begin, count));
    at::baddbmm_out(after, R.narrow(0, begin * H_, count * H_), M.narrow(0, begin * H_, count * H_), before);
  }
  return buffer;
}

/// The buffer of the states' gradients, backward in time.
Tensor Chunks::run_state_gradients(const Tensor& d_o, const std::optional<Tensor>& d_final_state) const {
  const int64_t N = layout_.sequences(), Z = layout_.chunks();
  Tensor buffer = at::zeros({N + Z, H_, K_, V_}, w_.options());
  if (d_final_state) layout_.put_finals(buffer, *d_final_state);
  const Tensor M = transition();
  const Tensor reads = at::baddbmm(gq_, P_.narrow(2, 0, C_), Y_, 1, -1);
  const Tensor R = at::bmm(reads.mT(), d_o);
  for (int64_t p = layout_.positions() - 1; p >= 0; --p) {
    const auto [begin, count] = layout_.chunks_at(p);
    Tensor before = matrices(buffer.narrow(0, layout_.before(p).begin, count));
    const Tensor after = matrices(buffer.narrow(0, layout_.after(p).begin, count));
    at::baddbmm_out(before, R.narrow(0, begin * H_, count * H_), M.narrow(0, begin * H_, count * H_).mT(),
                    after);
  }
  return buffer;
}

ChunkOutputs Chunks::forward(bool return_final_state, bool save_states) {
  const Tensor buffer = run_states();
  const int64_t count = call_.cu_seqlens ? call_.tokens() / C_ + layout_.sequences() : layout_.chunks();
  const Tensor starts = layout_.chunk_starts(buffer, count);
  const Tensor S0 = matrices(starts.narrow(0, 0, layout_.chunks()));
  add_states(S0);
  const Tensor o = at::bmm(gq_, S0).baddbmm_(P_, values_);
  return {scatter(o, H_, 1, V_, call_.q.scalar_type()).squeeze(2),
          return_final_state ? layout_.finals(buffer) : nothing(w_), save_states ? starts : nothing(w_)};
}

ChunkGradients Chunks::backward(const Tensor& chunk_states, const std::optional<Tensor>& d_o,
                                const std::optional<Tensor>& d_final_state) {
  const at::ScalarType type = call_.q.scalar_type();
  const Tensor S0 = matrices(chunk_states.narrow(0, 0, layout_.chunks()));
  add_states(S0);
  const Tensor dO = d_o ? layout_.gather(d_o->unsqueeze(2), type_).view({-1, C_, V_})
                        : at::zeros({layout_.chunks() * H_, C_, V_}, w_.options());
  const Tensor buffer = run_state_gradients(dO, d_final_state);
  const Tensor dS = matrices(buffer.narrow(0, layout_.sequences(), layout_.chunks()));  // after each chunk

  // Writes and the solve. dZ is the gradient of Z = gam e S0 + sum_l N_l (U or w_l), which b subtracts from
  // w_1.
  const Tensor dvalues = at::bmm(P_.mT(), dO).baddbmm_(dk_, dS);
  const Tensor dfirst = solved(T_.mT(), dvalues.narrow(1, 0, C_));
  const Tensor dZ = dfirst * b_.neg();
  const Tensor Z = at::bmm(ge_, S0).baddbmm_(N_, values_);
  const Tensor db = (dfirst * Z).sum(-1).neg_();
  dvalues.narrow(1, 0, C_).copy_(dfirst);
  if (L_ > 1) {
    const int64_t later = (L_ - 1) * C_;
    dvalues.narrow(1, C_, later).baddbmm_(N_.narrow(2, C_, later).mT(), dZ);
  }

  // Keys and queries. Gam masks the products.
  const Tensor dP = at::bmm(dO, values_.mT()), dN = at::bmm(dZ, values_.mT());
  const Tensor dqk = by_key_head(decayed_rows(dP, Gam_)), dek = by_key_head(decayed_rows(dN, Gam_.tril(-1)));
  const Tensor reads_q = at::bmm(dO, S0.mT()), reads_e = at::bmm(dZ, S0.mT());
  const Tensor keeps = at::bmm(values_, dS.mT());
  const Tensor keys = k_.view({-1, L_ * C_, K_});
  const Tensor gam = gam_.unsqueeze(-1), dec = dec_.repeat({1, L_}).unsqueeze(-1);
  const Tensor dq = at::baddbmm(by_key_head(reads_q * gam), dqk, keys).mul_(call_.scale);
  const Tensor de = at::baddbmm(by_key_head(reads_e * gam), dek, keys);
  const Tensor dk = at::baddbmm(by_key_head(keeps * dec), dqk.mT(), matrices(q_));
  dk.baddbmm_(dek.mT(), matrices(e_));
  if (!call_.erase_read) dk.narrow(1, 0, C_).add_(de);

  // The gate: every decay entry times its gradient, summed over the gates inside it.
  const Tensor entries = (dP * P_).addcmul_(dN, N_).view({-1, C_, L_, C_}).sum(2);
  const Tensor rows = (gq_ * reads_q).addcmul_(ge_, reads_e).sum(-1);
  const Tensor columns = (dk_ * keeps).view({-1, L_, C_, K_}).sum({1, 3});
  const Tensor through = (dS * S0).sum({1, 2}).unsqueeze(-1) * last_.squeeze(-1);
  const Tensor ones = at::ones({C_, C_}, w_.options());
  const Tensor dg =
      sum_over_spans(entries) + at::matmul(rows, ones.tril()) + at::matmul(columns, ones.triu(1)) + through;

  return {
      scatter(dq, J_, 1, K_, type).squeeze(2),
      scatter(dk, J_, L_, K_, type),
      scatter(dvalues, H_, L_, V_, type),
      scatter(db, H_, 1, 1, type_).view(call_.b.sizes()),
      scatter(dg, H_, 1, 1, type_).view(call_.g.sizes()),
      call_.erase_read ? scatter(de, J_, 1, K_, type).squeeze(2) : nothing(w_),
      call_.initial_state ? layout_.unsorted(buffer.narrow(0, 0, layout_.sequences())).clone() : nothing(w_)};
}

}  // namespace

ChunkOutputs prism_chunk_composed(const ChunkCall& call, bool return_final_state, bool save_states) {
  return Chunks(call).forward(return_final_state, save_states);
}

ChunkGradients prism_chunk_composed_backward(const ChunkCall& call, const at::Tensor& chunk_states,
                                             const std::optional<at::Tensor>& d_o,
                                             const std::optional<at::Tensor>& d_final_state) {
  return Chunks(call).backward(chunk_states, d_o, d_final_state);
}

}  // namespace prism
