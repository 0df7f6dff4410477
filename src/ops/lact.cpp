#include "prism/ops/lact.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "mini_batches.h"
#include "prism/ops/newton_schulz.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kRowNormEps = 1e-5;

Tensor row_norms(const Tensor& w) { return at::linalg_vector_norm(w, 2, -1, /*keepdim=*/true); }

/// Rows of (chunk, head) pairs: q [Z,C,K], weights [Z,.,.].
Tensor read(const LactWeights& w, const Tensor& q) {
  const Tensor hidden = at::silu(at::bmm(q, w[0].mT())) * at::bmm(q, w[2].mT());
  return at::bmm(hidden, w[1].mT());
}

/// A chunk's tokens on such rows; momentum [Z,1,1], its mean.
struct Chunk {
  Tensor k, v, lr, momentum;
};

/// sum_i lr_ij d(f(k_i) . v_i) / d w_j.
LactWeights gradients(const LactWeights& w, const Chunk& c) {
  const Tensor first = at::bmm(c.k, w[0].mT()), half = at::sigmoid(first), gate = first * half;
  const Tensor linear = at::bmm(c.k, w[2].mT()), back = at::bmm(c.v, w[1]);
  const auto rate = [&](int64_t j) { return c.lr.narrow(2, j, 1); };
  const Tensor slope = half * (1 + first * (1 - half));  // at::silu_backward has no derivative
  return {at::bmm((back * linear * slope * rate(0)).mT(), c.k), at::bmm((c.v * rate(1)).mT(), gate * linear),
          at::bmm((back * gate * rate(2)).mT(), c.k)};
}

/// The state after the chunk; norms [Z,rows,1] are those of the initial weights.
LactState updated(const LactState& state, const Chunk& chunk, const LactWeights& norms,
                  const LactRule& rule) {
  LactWeights step = gradients(state.weights, chunk);
  LactState next;
  for (size_t j = 0; j < 3; ++j) {
    if (chunk.momentum.defined()) {
      if (state.momentum[j].defined()) step[j] = step[j] + chunk.momentum * state.momentum[j];
      next.momentum[j] = step[j];
    }
    if (rule.muon) step[j] = newton_schulz(step[j], lact_muon_steps());
    const bool from_sum = rule.prenorm && state.sums[j].defined();
    const Tensor sum = (from_sum ? state.sums : state.weights)[j] + step[j];
    next.weights[j] = sum * (norms[j] / (row_norms(sum) + kRowNormEps));
    if (rule.prenorm) next.sums[j] = sum;
  }
  return next;
}

class LactPass {
 public:
  LactPass(const Tensor& q, const LactTokens& tokens, const LactWeights& initial, const LactRule& rule,
           const std::optional<Tensor>& cu_seqlens)
      : rule_(rule),
        batches_(q, cu_seqlens,
                 std::min(rule.chunk,
                          std::max<int64_t>(
                              longest_sequence(sequence_offsets(cu_seqlens, q.size(0), q.size(1))), 1)),
                 {}),
        has_momentum_(tokens.momentum.has_value()) {
    q_ = batches_.gather(q);
    tokens_ = {.k = batches_.gather(tokens.k),
               .v = batches_.gather(tokens.v),
               .lr = batches_.gather(tokens.lr),
               .momentum = {}};
    if (has_momentum_) tokens_.momentum = batches_.gather(tokens.momentum->unsqueeze(-1)).mean(1, true);
    for (size_t j = 0; j < 3; ++j) norms_[j] = row_norms(initial[j].to(q_.scalar_type()));
  }

  LactResult run(const LactState& state, at::ScalarType type);

 private:
  Tensors flat(const LactState& state) const;
  LactState unflat(const Tensors& all) const;
  /// The update by what was the chunk of these rows a position before.
  LactState after_previous(const LactState& state, const MiniBatches::Step& step) const;

  const LactRule& rule_;
  MiniBatches batches_;
  bool has_momentum_;
  Tensor q_;
  Chunk tokens_;
  LactWeights norms_;  // [H,rows,1]
  int64_t previous_begin_ = -1;
};

Tensors LactPass::flat(const LactState& state) const {
  Tensors all(state.weights.begin(), state.weights.end());
  for (size_t j = 0; rule_.prenorm && j < 3; ++j)
    all.push_back(state.sums[j].defined() ? state.sums[j] : state.weights[j]);
  for (size_t j = 0; has_momentum_ && j < 3; ++j)
    all.push_back(state.momentum[j].defined() ? state.momentum[j] : at::zeros_like(state.weights[j]));
  for (Tensor& x : all) x = x.to(q_.scalar_type());
  return all;
}

LactState LactPass::unflat(const Tensors& all) const {
  LactState state;
  auto next = all.begin();
  std::copy_n(next, 3, state.weights.begin());
  if (rule_.prenorm) std::copy_n(next += 3, 3, state.sums.begin());
  if (has_momentum_) std::copy_n(next += 3, 3, state.momentum.begin());
  return state;
}

LactState LactPass::after_previous(const LactState& state, const MiniBatches::Step& step) const {
  const auto previous = [&](const Tensor& x) {
    return x.defined() ? x.narrow(0, previous_begin_, step.count) : x;
  };
  LactWeights norms;
  for (size_t j = 0; j < 3; ++j) norms[j] = norms_[j].repeat({step.count / batches_.heads(), 1, 1});
  return updated(state,
                 {previous(tokens_.k), previous(tokens_.v), previous(tokens_.lr), previous(tokens_.momentum)},
                 norms, rule_);
}

LactResult LactPass::run(const LactState& state, at::ScalarType type) {
  Tensors outputs;
  const MiniBatches::Pieces queries = batches_.pieces(q_);
  const Tensors last = batches_.run(flat(state), [&](const MiniBatches::Step& step, const Tensors& all) {
    LactState now = unflat(all);
    if (previous_begin_ >= 0) now = after_previous(now, step);
    previous_begin_ = step.begin;
    outputs.push_back(read(now.weights, step.of(queries)));
    return flat(now);
  });
  return {.o = batches_.scatter(at::cat(outputs), type), .state = unflat(last)};
}

void check_arguments(const Tensor& q, const LactTokens& tokens, const LactState& state,
                     const LactRule& rule) {
  ArgumentCheck check("lact");
  check.tensor("q", q, 4, "[B,T,H,K]");
  if (rule.chunk < 1) check.fail_with("chunk is {}, expected at least 1", rule.chunk);
  for (const auto& [name, x] :
       {std::pair{"k", &tokens.k}, std::pair{"v", &tokens.v}, std::pair{"lr", &tokens.lr}}) {
    check.tensor(name, *x, 4, "[B,T,H,channels]");
    for (int64_t dim = 0; dim < 3; ++dim)
      check.size(name, *x, dim, dim == 0 ? "rows" : dim == 1 ? "tokens" : "heads", q.size(dim), "q has");
  }
  check.size("k", tokens.k, 3, "channels", q.size(3), "q has");
  check.size("lr", tokens.lr, 3, "rates", 3, "there are weights");
  const std::array<const char*, 3> names{"w0", "w1", "w2"};
  for (size_t j = 0; j < 3; ++j) {
    check.tensor(names[j], state.weights[j], 4, "[N,H,rows,columns]");
    check.size(names[j], state.weights[j], 1, "heads", q.size(2), "q has");
  }
  check.size("w0", state.weights[0], 3, "columns", q.size(3), "q has channels");
  check.size("w1", state.weights[1], 2, "rows", tokens.v.size(3), "v has channels");
  if (tokens.momentum) check.tensor("momentum", *tokens.momentum, 3, "[B,T,H]");
}

Tensor rows(const Tensor& x_NCHW) { return x_NCHW.transpose(1, 2).flatten(0, 1); }

}  // namespace

LactResult lact(const Tensor& q, const LactTokens& tokens, const LactState& state, const LactWeights& initial,
                const LactRule& rule, const std::optional<Tensor>& cu_seqlens) {
  check_arguments(q, tokens, state, rule);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (q.numel() == 0) return {.o = at::zeros(tokens.v.sizes(), q.options()), .state = state};
  return LactPass(q, tokens, initial, rule, cu_seqlens).run(state, q.scalar_type());
}

Tensor lact_read(const LactWeights& weights, const Tensor& q) {
  LactWeights w;
  for (size_t j = 0; j < 3; ++j) w[j] = weights[j].flatten(0, 1);
  return read(w, q.to(w[0].scalar_type()).flatten(0, 1).unsqueeze(1)).view({q.size(0), q.size(1), -1});
}

LactState lact_update(const LactState& state, const LactTokens& tokens, const LactWeights& initial,
                      const LactRule& rule) {
  const int64_t N = tokens.k.size(0), H = tokens.k.size(2);
  const auto type = state.weights[0].scalar_type();
  LactState flat;
  LactWeights norms;
  for (size_t j = 0; j < 3; ++j) {
    flat.weights[j] = state.weights[j].flatten(0, 1);
    if (state.sums[j].defined()) flat.sums[j] = state.sums[j].flatten(0, 1);
    if (state.momentum[j].defined()) flat.momentum[j] = state.momentum[j].flatten(0, 1);
    norms[j] = row_norms(initial[j].to(type)).repeat({N, 1, 1});
  }
  Chunk chunk{rows(tokens.k.to(type)), rows(tokens.v.to(type)), rows(tokens.lr.to(type)), {}};
  if (tokens.momentum) chunk.momentum = rows(tokens.momentum->to(type).unsqueeze(-1)).mean(1, true);
  LactState next = updated(flat, chunk, norms, rule);
  for (LactWeights* part : {&next.weights, &next.sums, &next.momentum})
    for (Tensor& x : *part)
      if (x.defined()) x = x.unflatten(0, {N, H});
  return next;
}

}  // namespace prism
