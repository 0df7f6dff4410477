// fast_weights against the token loop, against the operations it contains, and against itself in pieces.
#include "prism/ops/fast_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "ops/fast_weights_loop.h"
#include "prism/core/error.h"
#include "prism/ops/packing.h"
#include "prism/ops/prism_chunk.h"

namespace prism::test {
namespace {

using at::Tensor;

double error_of(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-6);
}

struct Case {
  std::string name;
  std::function<void(FastWeightArgs&)> change = [](FastWeightArgs&) {};
  int64_t layers = 1, tokens = 11, mini_batch = 4;
};

constexpr int64_t kRows = 2, kHeads = 2, kWidth = 4;

Tensor gate(int64_t tokens) { return at::rand({kRows, tokens, kHeads}, at::kDouble); }
Tensor channel_gate(int64_t tokens) { return at::rand({kRows, tokens, kHeads, kWidth}, at::kDouble); }

FastWeightArgs arguments(const Case& c) {
  at::manual_seed(3);
  const auto tokens = [&] { return at::randn({kRows, c.tokens, kHeads, kWidth}, at::kDouble); };
  FastWeightArgs args{.q = tokens(),
                      .k = tokens() / 2,
                      .v = tokens(),
                      .memory = {},
                      .rule = {},
                      .state = {},
                      .mini_batch = c.mini_batch};
  const int64_t hidden = c.layers == 1 ? kWidth : 3;
  args.state.weights.push_back(at::randn({kRows, kHeads, kWidth, hidden}, at::kDouble) / 2);
  if (c.layers == 2) args.state.weights.push_back(at::randn({kRows, kHeads, hidden, kWidth}, at::kDouble));
  args.rule.gradient_weight = gate(c.tokens) / 4;
  c.change(args);
  return args;
}

void with_bias(FastWeightArgs& a) {
  a.memory.bias = true;
  for (Tensor& W : a.state.weights) W = at::constant_pad_nd(W, {0, 0, 0, 1}, 0.3);
}
void with_norm(FastWeightArgs& a) {
  a.memory.norm_weight = 1 + at::randn({kHeads, kWidth}, at::kDouble) / 4;
  a.memory.norm_bias = at::randn({kHeads, kWidth}, at::kDouble) / 4;
}
void as_ttt(FastWeightArgs& a) {
  with_bias(a);
  with_norm(a);
  a.memory.exact_gelu = false;
  a.memory.loss = InnerLoss::kHalfSquare;
  a.rule.accumulate = false;
  a.rule.place_step = at::rand({a.mini_batch}, at::kDouble);
}
void as_titans(FastWeightArgs& a) {
  a.rule.momentum = gate(a.q.size(1));
  a.rule.retention = gate(a.q.size(1));
}
void as_atlas(FastWeightArgs& a) {
  as_titans(a);
  a.rule.step = gate(a.q.size(1)) / 4;
  a.rule.window = 3;
}
void with_muon(FastWeightArgs& a) { a.rule.newton_schulz = true; }
void with_delta(FastWeightArgs& a, InnerLoss loss) {
  a.memory.loss = loss;
  a.rule.delta = 2 * gate(a.q.size(1));
}
void with_gates_by_channel(FastWeightArgs& a) {
  a.rule.retention = channel_gate(a.q.size(1));
  a.rule.step = channel_gate(a.q.size(1)) / 4;
}

std::vector<Case> cases() {
  return {
      {"plain"},
      {"plain_mlp", [](FastWeightArgs&) {}, 2},
      {"ttt_linear", as_ttt},
      {"ttt_mlp", as_ttt, 2},
      {"titans", as_titans},
      {"titans_sequential", as_titans, 1, 5, 1},
      {"titans_one_batch", as_titans, 1, 5, 16},
      {"titans_mlp", as_titans, 2},
      {"titans_mlp_norm", [](FastWeightArgs& a) { as_titans(a), with_norm(a); }, 2},
      {"titans_zero_gates",
       [](FastWeightArgs& a) {
         as_titans(a);
         a.rule.momentum = at::where(*a.rule.momentum < 0.5, 0, *a.rule.momentum);
         a.rule.retention = at::where(*a.rule.retention < 0.5, 0, *a.rule.retention);
       }},
      {"omega", as_atlas},
      {"omega_without_momentum", [](FastWeightArgs& a) { as_atlas(a), a.rule.momentum.reset(); }},
      {"omega_long_window", [](FastWeightArgs& a) { as_atlas(a), a.rule.window = 7; }, 1, 11, 2},
      // Far above the sequence: the work is the sequence's.
      {"titans_mini_batch_above_the_sequence", as_titans, 1, 70, 65'536},
      {"ttt_mini_batch_above_the_sequence", as_ttt, 2, 70, 65'536},
      {"omega_window_above_the_sequence", [](FastWeightArgs& a) { as_atlas(a), a.rule.window = 4096; }, 1, 70,
       65'536},
      {"atlas", [](FastWeightArgs& a) { as_atlas(a), with_muon(a); }},
      {"atlas_mlp", [](FastWeightArgs& a) { as_atlas(a), with_muon(a); }, 2, 6},
      {"moneta",
       [](FastWeightArgs& a) {
         a.memory.loss = InnerLoss::kCube, a.memory.projection = Projection::kQuarticNorm;
         a.rule.retention = gate(a.q.size(1)), a.rule.step = gate(a.q.size(1)) / 8;
       }},
      {"moneta_by_channel",
       [](FastWeightArgs& a) {
         a.memory.loss = InnerLoss::kCube, a.memory.projection = Projection::kQuarticNorm;
         with_gates_by_channel(a);
       }},
      {"yaad_sign", [](FastWeightArgs& a) { with_delta(a, InnerLoss::kHuberSign); }},
      {"yaad_norm_by_channel",
       [](FastWeightArgs& a) { with_delta(a, InnerLoss::kHuberNorm), with_gates_by_channel(a); }},
      {"memora_by_channel",
       [](FastWeightArgs& a) {
         a.memory.loss = InnerLoss::kHalfSquare, a.memory.projection = Projection::kSoftmax;
         a.state.weights[0] = at::log_softmax(a.state.weights[0], 2);
         with_gates_by_channel(a);
       }},
  };
}

class FastWeights : public ::testing::TestWithParam<Case> {};

TEST_P(FastWeights, IsTheTokenLoop) {
  const FastWeightArgs args = arguments(GetParam());
  const double limit = args.rule.newton_schulz ? 1e-9 : 1e-11;
  const FastWeightResult result = fast_weights(args);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t head = 0; head < kHeads; ++head) {
      FastWeightLoop loop(args, row, head);
      const Tensor expected = loop.run();
      EXPECT_LT(error_of(result.o[row].select(1, head), expected), limit);
      for (size_t l = 0; l < loop.weights().size(); ++l) {
        EXPECT_LT(error_of(result.state.weights[l][row][head], loop.weights()[l]), limit);
        if (!result.state.momentum.empty() && args.rule.accumulate) {
          EXPECT_LT(error_of(result.state.momentum[l][row][head], loop.sums()[l]), limit);
        }
      }
    }
}

/// Tokens [begin, begin + count) with the state of those before.
FastWeightArgs part(const FastWeightArgs& all, int64_t begin, int64_t count, const FastState& state) {
  FastWeightArgs some = all;
  for (Tensor* x : {&some.q, &some.k, &some.v}) *x = x->narrow(1, begin, count);
  for (std::optional<Tensor>* x : {&some.rule.gradient_weight, &some.rule.momentum, &some.rule.retention,
                                   &some.rule.step, &some.rule.delta})
    if (*x) *x = (*x)->narrow(1, begin, count);
  some.state = state;
  some.seen.assign(all.q.size(0), begin);
  return some;
}

TEST_P(FastWeights, ContinuesFromAnyToken) {
  const FastWeightArgs args = arguments(GetParam());
  const int64_t T = args.q.size(1);
  const FastWeightResult whole = fast_weights(args);
  for (const int64_t cut : {int64_t{0}, int64_t{1}, T / 2, T - 1, T}) {
    const FastWeightResult head = fast_weights(part(args, 0, cut, args.state));
    const FastWeightResult tail = fast_weights(part(args, cut, T - cut, head.state));
    EXPECT_LT(error_of(at::cat({head.o, tail.o}, 1), whole.o), 1e-10) << "cut at " << cut;
    for (size_t l = 0; l < whole.state.weights.size(); ++l)
      EXPECT_LT(error_of(tail.state.weights[l], whole.state.weights[l]), 1e-10) << "cut at " << cut;
  }
}

TEST_P(FastWeights, PackedSequencesAreSeparateCalls) {
  const FastWeightArgs args = arguments(GetParam());
  const int64_t T = args.q.size(1);
  const std::vector<int64_t> lengths{2, 0, T - 3, 1};
  FastWeightArgs packed = part(args, 0, T, args.state);
  packed.seen.clear();
  for (Tensor* x : {&packed.q, &packed.k, &packed.v}) *x = x->narrow(0, 0, 1);
  for (std::optional<Tensor>* x : {&packed.rule.gradient_weight, &packed.rule.momentum,
                                   &packed.rule.retention, &packed.rule.step, &packed.rule.delta})
    if (*x) *x = (*x)->narrow(0, 0, 1);
  for (Tensor& W : packed.state.weights) W = at::cat({W, W * 0.5});
  const Packing packing = Packing::packed(lengths);
  FastWeightArgs all = packed;
  all.cu_seqlens = packing.cu_seqlens();
  const FastWeightResult result = fast_weights(all);
  for (size_t n = 0; n < lengths.size(); ++n) {
    FastState own;
    for (const Tensor& W : packed.state.weights) own.weights.push_back(W.narrow(0, int64_t(n), 1));
    FastWeightArgs one = part(packed, packing.offsets()[n], lengths[n], own);
    one.seen.clear();
    const FastWeightResult alone = fast_weights(one);
    EXPECT_LT(error_of(result.o.narrow(1, packing.offsets()[n], lengths[n]), alone.o), 1e-11)
        << "sequence " << n;
    for (size_t l = 0; l < own.weights.size(); ++l)
      EXPECT_LT(error_of(result.state.weights[l].narrow(0, int64_t(n), 1), alone.state.weights[l]), 1e-11)
          << "sequence " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastWeights, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

/// prism_chunk from Titans' inputs: S_t = e^g S - beta k (k . S)..., see design section 21, number 15.
Tensor recurrence(const FastWeightArgs& a, const Tensor& beta, const Tensor& b, const Tensor& g) {
  PrismChunkArgs args{
      .q = a.q, .k = a.k.unsqueeze(2), .w = (beta.unsqueeze(-1) * a.v).unsqueeze(2), .b = b, .g = g};
  args.initial_state = a.state.weights[0];
  args.scale = 1;
  return prism_chunk(args).o;
}

TEST(FastWeightEquivalences, TitansWithoutMomentumAndDecayIsDeltaNet) {
  const FastWeightArgs args = arguments({.name = "delta", .mini_batch = 1});
  const Tensor beta = 2 * *args.rule.gradient_weight;
  EXPECT_LT(error_of(fast_weights(args).o, recurrence(args, beta, beta, at::zeros_like(beta))), 1e-12);
}

TEST(FastWeightEquivalences, TitansWithoutMomentumIsComba) {
  FastWeightArgs args = arguments({.name = "comba", .mini_batch = 1});
  const Tensor beta = 2 * *args.rule.gradient_weight, keep = 0.2 + 0.8 * gate(args.q.size(1));
  args.rule.retention = keep;
  EXPECT_LT(error_of(fast_weights(args).o, recurrence(args, beta, beta / keep, keep.log())), 1e-12);
}

/// Without momentum and decay Titans is TTT-Linear's dual form with LN left out, target v and idx = 1.
TEST(FastWeightEquivalences, TitansWithoutMomentumAndDecayIsTheDualFormOfTtt) {
  const FastWeightArgs args = arguments({.name = "dual", .tokens = 37, .mini_batch = 16});
  FastWeightArgs ttt = args;
  ttt.rule.accumulate = false;
  ttt.rule.place_step = at::ones({16}, at::kDouble);
  const Tensor o = fast_weights(args).o;
  EXPECT_LT(error_of(fast_weights(ttt).o, o), 1e-13);
  const auto first = [&](const Tensor& x) { return x[0].select(1, 0).narrow(0, 0, 16); };
  const Tensor q = first(args.q), k = first(args.k), W = args.state.weights[0][0][0];
  const Tensor G = 2 * (k.matmul(W) - first(args.v)) * first(*args.rule.gradient_weight).unsqueeze(1);
  EXPECT_LT(error_of(first(o), q.matmul(W) - q.matmul(k.t()).tril().matmul(G)), 1e-13);
}

TEST(FastWeightEquivalences, YaadWithoutALimitIsTitans) {
  FastWeightArgs yaad = arguments({.name = "yaad"});
  const Tensor eta = gate(yaad.q.size(1)) / 2;
  yaad.rule.gradient_weight.reset();
  yaad.rule.retention = gate(yaad.q.size(1));
  FastWeightArgs titans = yaad;
  titans.rule.gradient_weight = eta / 2;
  yaad.rule.step = eta;
  yaad.rule.delta = at::full_like(eta, std::numeric_limits<double>::infinity());
  for (const InnerLoss loss : {InnerLoss::kHuberSign, InnerLoss::kHuberNorm}) {
    yaad.memory.loss = loss;
    EXPECT_LT(error_of(fast_weights(yaad).o, fast_weights(titans).o), 1e-13);
  }
}

TEST(FastWeightErrors, NameTheTensor) {
  const auto message = [](const std::function<void(FastWeightArgs&)>& change) {
    FastWeightArgs args = arguments({.name = "wrong"});
    change(args);
    try {
      fast_weights(args);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto contains = [](const std::string& text) { return ::testing::HasSubstr(text); };
  EXPECT_THAT(message([](auto& a) { a.k = a.k.narrow(3, 0, 3); }), contains("k has 3 channels"));
  EXPECT_THAT(message([](auto& a) { a.rule.gradient_weight = gate(3); }),
              contains("gradient_weight has 3 tokens"));
  EXPECT_THAT(message([](auto& a) { a.state.weights.clear(); }), contains("0 layers of weights"));
  EXPECT_THAT(message([](auto& a) { a.state.weights[0] = a.state.weights[0].narrow(2, 0, 2); }),
              contains("weights has 2 rows"));
  EXPECT_THAT(message([](auto& a) { a.rule.accumulate = false; }), contains("place_step"));
  EXPECT_THAT(message([](auto& a) { a.memory.loss = InnerLoss::kHuberSign; }), contains("delta"));
  EXPECT_THAT(message([](auto& a) { a.mini_batch = 0; }), contains("mini_batch is 0"));
  EXPECT_THAT(message([](auto& a) { a.implementation = Implementation::kFused; }), contains("no fused"));
}

}  // namespace
}  // namespace prism::test
