// The chunked pass of fast-weight memories. At each chunk position: the gradients of its tokens at the start
// of their mini-batch, the reads with the weights after each token, and the weights after the last.
#include "prism/ops/fast_weights.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "fast_memory.h"
#include "fast_mixing.h"
#include "fast_weights_check.h"
#include "mini_batches.h"
#include "prism/ops/newton_schulz.h"
#include "prism_chunk_call.h"
#include "ttt_linear_fused.h"

namespace prism {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Step = MiniBatches::Step;
using Gradients = MemoryModel::Gradients;

Tensor kept(const Tensor& keep, const Tensor& x) { return keep.defined() ? keep * x : x; }

/// What the states are at a position of the sequences.
struct States {
  Tensors A, S, start, recent;  ///< recent: k, v, weight of the last window-1 tokens

  Tensors all() const {
    Tensors list = A;
    for (const Tensors* part : {&S, &start, &recent}) list.insert(list.end(), part->begin(), part->end());
    return list;
  }
};

bool has_sum(const FastRule& rule) { return rule.momentum || !rule.accumulate; }

/// The given states with all that is absent filled in.
States initial_states(const FastWeightArgs& args) {
  const FastState& given = args.state;
  const auto options = args.q.options().dtype(gate_type(args.q.scalar_type()));
  const auto typed = [&](const Tensor& x) { return x.to(options.dtype()); };
  States states;
  for (size_t l = 0; l < given.weights.size(); ++l) {
    states.A.push_back(typed(given.weights[l]));
    if (has_sum(args.rule))
      states.S.push_back(given.momentum.empty() ? at::zeros_like(states.A[l]) : typed(given.momentum[l]));
    states.start.push_back(given.start.empty() ? states.A[l] : typed(given.start[l]));
  }
  const int64_t recent = args.rule.window - 1;
  if (recent == 0) return states;
  // Tokens before the first one weigh nothing.
  const auto filled = [&](const Tensor& x, int64_t width) {
    const int64_t held = x.defined() ? std::min(x.size(2), recent) : 0;
    const Tensor none = at::zeros({states.A[0].size(0), args.q.size(2), recent - held, width}, options);
    return held == 0 ? none : at::cat({none, typed(x.narrow(2, x.size(2) - held, held))}, 2);
  };
  states.recent = {filled(given.recent_k, args.k.size(3)), filled(given.recent_v, args.v.size(3)),
                   filled(given.recent_weight, 1)};
  return states;
}

/// The same call with a window that reaches no further back than the first token there was, from the token
/// after the last of these: the state keeps what that one needs.
FastWeightArgs with_reachable_window(FastWeightArgs args) {
  if (args.rule.window == 1) return args;
  const int64_t held = args.state.recent_k.defined() ? args.state.recent_k.size(2) : 0;
  const int64_t before = args.seen.empty() ? held : *std::max_element(args.seen.begin(), args.seen.end());
  const int64_t now = longest_sequence(sequence_offsets(args.cu_seqlens, args.q.size(0), args.q.size(1)));
  args.rule.window = slots_for(args.rule.window, before + now + 1);
  return args;
}

FastState public_state(const States& states) {
  FastState result{.weights = states.A, .momentum = states.S, .start = states.start};
  if (!states.recent.empty())
    result.recent_k = states.recent[0], result.recent_v = states.recent[1],
    result.recent_weight = states.recent[2];
  return result;
}

class FastWeightPass {
 public:
  explicit FastWeightPass(const FastWeightArgs& args)
      : args_(args),
        rule_(args.rule),
        batches_(args.q, args.cu_seqlens, args.mini_batch, args.seen),
        model_(args.memory, args.q.size(2)),
        layers_(args.state.weights.size()),
        written_out_(rule_.newton_schulz || args.memory.projection != Projection::kNone),
        has_sum_(has_sum(rule_)) {
    q_ = batches_.gather(args.q);
    const Tensor k = batches_.gather(args.k);
    const auto gathered = [&](const std::optional<Tensor>& gate) {
      return gate ? batches_.gather(gate->unsqueeze(-1)) : Tensor();
    };
    Tensor weight = gathered(rule_.gradient_weight);
    if (rule_.window > 1 && !weight.defined()) weight = 1 - batches_.padding();
    tokens_ = {.q = batches_.pieces(q_),
               .k = batches_.pieces(k),
               .v = batches_.pieces(batches_.gather(args.v)),
               .weight = batches_.pieces(weight),
               .delta = batches_.pieces(gathered(rule_.delta))};
    prepare_mixing(k);
  }

  FastWeightResult run();

 private:
  using Pieces = MiniBatches::Pieces;
  /// Mixing, cut by position.
  struct MixingPieces {
    Pieces keep, carry, decay, into, sum, apply;
    Mixing at(const Step& step) const {
      return {.keep = step.of(keep),
              .carry = step.of(carry),
              .decay = step.of(decay),
              .into = step.of(into),
              .sum = step.of(sum),
              .apply = step.of(apply)};
    }
  };
  struct TokenPieces {
    Pieces q, k, v, weight, delta;
  };

  void prepare_mixing(const Tensor& k);
  MixingPieces cut(const Mixing& mixing) const;
  States unpack(const Tensors& all) const;
  Tensors body(const Step& step, const Tensors& all);

  Tensor read(const Tensors& base, const Tensors& S, const Gradients& g, const Mixing& m,
              const Step& step) const;
  Tensor written_at(const Tensor& start, size_t layer, const Gradients& g, const Tensor& x, const Mixing& m,
                    const Step& step) const;
  Tensor weights_of_tokens(const Tensor& A, const Tensor& S, const Tensor& x, const Tensor& g,
                           const Mixing& m) const;
  Tensor read_written_out(const Tensors& each, const Tensor& q) const;
  Tensor next_weights(const Tensor& A, const Tensor& S, const Tensor& x, const Tensor& g,
                      const Mixing& end) const;
  Tensor next_sum(const Tensor& S, const Tensor& x, const Tensor& g, const Mixing& end,
                  const Step& step) const;
  Tensors next_recent(const Tensors& window, const Tensor& last) const;
  /// Whether S at a chunk's start reaches its weights. TTT's is 0 unless the chunk continues a mini-batch.
  bool carries() const { return has_sum_ && (rule_.accumulate || batches_.any_open()); }

  const FastWeightArgs& args_;
  const FastRule& rule_;
  MiniBatches batches_;
  MemoryModel model_;
  size_t layers_;
  bool written_out_, has_sum_;
  Tensor q_;  // [Z,C,K]
  TokenPieces tokens_;
  MixingPieces mixing_, end_;  // of all tokens, and of each chunk's last one alone
  Pieces last_;
  Pieces products_;  // into_tj (q_t x_j) of the first layer, where x is known before the pass
  Tensors outputs_;  // of the last layer, before what finishes it
};

States FastWeightPass::unpack(const Tensors& all) const {
  auto next = all.begin();
  const auto take = [&](size_t count) {
    Tensors some(next, next + count);
    next += count;
    return some;
  };
  States states;
  states.A = take(layers_);
  states.S = take(has_sum_ ? layers_ : 0);
  states.start = take(layers_);
  states.recent = take(rule_.window > 1 ? 3 : 0);
  return states;
}

FastWeightPass::MixingPieces FastWeightPass::cut(const Mixing& mixing) const {
  return {.keep = batches_.pieces(mixing.keep),
          .carry = batches_.pieces(mixing.carry),
          .decay = batches_.pieces(mixing.decay),
          .into = batches_.pieces(mixing.into),
          .sum = batches_.pieces(mixing.sum),
          .apply = batches_.pieces(mixing.apply)};
}

/// All that follows from the tokens alone, for all positions at once.
void FastWeightPass::prepare_mixing(const Tensor& k) {
  const Mixing all = make_mixing(rule_, batches_);
  const Tensor last = batches_.last_token();
  const auto at_end = [&](const Tensor& rows) { return rows.defined() ? at::bmm(last, rows) : rows; };
  mixing_ = cut(all);
  last_ = batches_.pieces(last);
  end_ = cut({.keep = at_end(all.keep),
              .carry = at_end(all.carry),
              .decay = at_end(all.decay),
              .into = all.by_channel() ? at::matmul(last.unsqueeze(1), all.into) : at_end(all.into),
              .sum = at_end(all.sum),
              .apply = {}});
  if (rule_.window == 1 && !all.by_channel() && !written_out_)
    products_ = batches_.pieces(all.into * at::bmm(model_.lift(q_), model_.lift(k).mT()));
}

/// What tokens read with the weights after them, x_t keep_t A - sum_j into_tj (x_t x_j) g_j, x_t the layer's
/// input for q_t.
Tensor FastWeightPass::written_at(const Tensor& start, size_t layer, const Gradients& g, const Tensor& x,
                                  const Mixing& m, const Step& step) const {
  const Tensor before = kept(m.keep, at::bmm(x, start));
  if (layer == 0 && !products_.empty()) return at::baddbmm(before, step.of(products_), g.outputs[0], 1, -1);
  const Tensor products = at::bmm(x, g.inputs[layer].mT());
  if (!m.by_channel()) return at::baddbmm(before, m.into * products, g.outputs[layer], 1, -1);
  const Tensor written = at::matmul(m.into * products.unsqueeze(1), g.outputs[layer].mT().unsqueeze(-1));
  return before - written.squeeze(-1).transpose(1, 2);
}

/// The dual form: reads without the weights of single tokens.
Tensor FastWeightPass::read(const Tensors& base, const Tensors& S, const Gradients& g, const Mixing& m,
                            const Step& step) const {
  Tensor x = model_.lift(step.of(tokens_.q)), z;
  for (size_t l = 0; l < layers_; ++l) {
    if (l > 0) x = model_.hidden(z);
    z = written_at(base[l], l, g, x, m, step);
    if (carries()) z = z - m.carry * at::bmm(x, S[l]);
  }
  return z;
}

/// A_t of every token, [Z,C,in,out].
Tensor FastWeightPass::weights_of_tokens(const Tensor& A, const Tensor& S, const Tensor& x, const Tensor& g,
                                         const Mixing& m) const {
  const int64_t in = A.size(1), out = A.size(2);
  const Tensor keep = m.keep.defined() ? m.keep.unsqueeze(2) : m.keep;  // [Z,C,1,1 or V]
  const Tensor start = kept(keep, A.unsqueeze(1));
  if (m.by_channel()) {
    const Tensor writes = g.mT().unsqueeze(-1) * x.unsqueeze(1);  // [Z,V,J,K]
    return start - at::matmul(m.into, writes).permute({0, 2, 3, 1});
  }
  const Tensor writes = (x.unsqueeze(-1) * g.unsqueeze(-2)).flatten(2);  // [Z,J,in*out]
  if (!rule_.newton_schulz) return start - at::bmm(m.into, writes).unflatten(2, {in, out});
  Tensor sums = at::bmm(m.sum, writes).unflatten(2, {in, out});
  if (S.defined()) sums = sums + m.decay.unsqueeze(-1) * S.unsqueeze(1);
  const Tensor directions = newton_schulz(sums, muon_steps());
  return start - at::bmm(m.apply, directions.flatten(2)).unflatten(2, {in, out});
}

Tensor FastWeightPass::read_written_out(const Tensors& each, const Tensor& q) const {
  Tensor x = model_.lift(q), z;
  for (size_t l = 0; l < layers_; ++l) {
    if (l > 0) x = model_.hidden(z);
    z = at::matmul(x.unsqueeze(2), model_.project(each[l])).squeeze(2);
  }
  return z;
}

/// A after the chunk's last token.
Tensor FastWeightPass::next_weights(const Tensor& A, const Tensor& S, const Tensor& x, const Tensor& g,
                                    const Mixing& end) const {
  const Tensor into = end.by_channel() ? end.into.squeeze(2).mT() : end.into.mT();  // [Z,C,1 or V]
  const Tensor next = at::baddbmm(kept(end.keep, A), x.mT(), into * g, 1, -1);
  return carries() && !end.by_channel() ? next - end.carry * S : next;
}

/// S after the chunk's last token; it restarts after a mini-batch where the rule says so.
Tensor FastWeightPass::next_sum(const Tensor& S, const Tensor& x, const Tensor& g, const Mixing& end,
                                const Step& step) const {
  if (!rule_.accumulate && step.all_close) return at::zeros_like(S);
  const Tensor next = at::baddbmm(end.decay * S, x.mT(), end.sum.mT() * g);
  return !rule_.accumulate && step.any_close ? next.masked_fill(step.closes, 0) : next;
}

Tensors FastWeightPass::next_recent(const Tensors& window, const Tensor& last) const {
  const int64_t count = rule_.window - 1;
  const Tensor tokens = last.squeeze(1).argmax(1) + 1;
  const Tensor places = (tokens.unsqueeze(1) + at::arange(count, tokens.options())).unsqueeze(2);
  Tensors recent;
  for (const Tensor& x : window) recent.push_back(x.gather(1, places.expand({-1, -1, x.size(2)})));
  return recent;
}

Tensors FastWeightPass::body(const Step& step, const Tensors& all) {
  const States now = unpack(all);
  const Mixing m = mixing_.at(step), end = end_.at(step);
  Tensors window{step.of(tokens_.k), step.of(tokens_.v), step.of(tokens_.weight)};
  for (size_t i = 0; i < now.recent.size(); ++i) window[i] = at::cat({now.recent[i], window[i]}, 1);
  Tensors W;
  for (const Tensor& start : now.start) W.push_back(model_.project_start(start));
  const Gradients g = model_.gradients(W, window[0], window[1], window[2], step.of(tokens_.delta));

  const Tensors& base = rule_.accumulate ? now.A : now.start;
  Tensors each, A, S, start;
  for (size_t l = 0; l < layers_; ++l) {
    const Tensor sum = has_sum_ ? now.S[l] : Tensor();
    if (written_out_) each.push_back(weights_of_tokens(base[l], sum, g.inputs[l], g.outputs[l], m));
    A.push_back(rule_.newton_schulz
                    ? at::bmm(step.of(last_), each[l].flatten(2)).view(base[l].sizes())
                    : model_.settle(next_weights(base[l], sum, g.inputs[l], g.outputs[l], end)));
    if (has_sum_) S.push_back(next_sum(sum, g.inputs[l], g.outputs[l], end, step));
    start.push_back(step.all_close   ? A[l]
                    : step.any_close ? at::where(step.closes, A[l], now.start[l])
                                     : now.start[l]);
  }
  outputs_.push_back(written_out_ ? read_written_out(each, step.of(tokens_.q))
                                  : read(base, now.S, g, m, step));

  return States{A, S, start, rule_.window > 1 ? next_recent(window, step.of(last_)) : Tensors{}}.all();
}

FastWeightResult FastWeightPass::run() {
  const Tensors all = batches_.run(initial_states(args_).all(), [&](const Step& step, const Tensors& states) {
    return body(step, states);
  });
  const Tensor o = model_.finish(at::cat(outputs_), q_);
  return {.o = batches_.scatter(o, args_.q.scalar_type()), .state = public_state(unpack(all))};
}

}  // namespace

FastWeightResult fast_weights(const FastWeightArgs& given) {
  check_fast_weight_arguments(given);
  const FastWeightArgs args = with_reachable_window(given);
  // Everything inside runs in the type of states, also under autocast.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (args.v.numel() == 0)
    return {.o = at::zeros(args.v.sizes(), args.q.options()), .state = public_state(initial_states(args))};
  const bool fits = fits_ttt_linear_kernel(args);
  if (args.implementation == Implementation::kReference ||
      (args.implementation == Implementation::kFused && !fits))
    fail("fast_weights: no {} implementation of this call", implementation_name(args.implementation));
  if (fits && args.implementation != Implementation::kComposed) return ttt_linear_fused(args);
  return FastWeightPass(args).run();
}

}  // namespace prism
