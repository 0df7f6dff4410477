#include "prism/ops/lact.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "prism/ops/newton_schulz.h"
#include "prism/ops/packing.h"

namespace prism::test {
namespace {

using at::Tensor;

double lact_error(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-6);
}

struct Problem {
  explicit Problem(int64_t tokens, int64_t rows = 2) {
    at::manual_seed(4);
    const auto normal = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
    q = normal({rows, tokens, 2, 5});
    learns = {.k = normal({rows, tokens, 2, 5}),
              .v = normal({rows, tokens, 2, 3}),
              .lr = at::rand({rows, tokens, 2, 3}, at::kDouble) / 10,
              .momentum = at::rand({rows, tokens, 2}, at::kDouble)};
    initial = {normal({2, 6, 5}), normal({2, 3, 6}), normal({2, 6, 5})};
    for (size_t j = 0; j < 3; ++j) state.weights[j] = initial[j].unsqueeze(0).repeat({rows, 1, 1, 1});
  }
  LactTokens part(int64_t begin, int64_t count) const {
    const auto some = [&](const Tensor& x) { return x.narrow(1, begin, count); };
    return {some(learns.k), some(learns.v), some(learns.lr), some(*learns.momentum)};
  }
  Tensor q;
  LactTokens learns;
  LactWeights initial;
  LactState state;
};

TEST(Lact, OneChunkIsAPlainSwiGlu) {
  const Problem p(7);
  const Tensor o = lact(p.q, p.learns, p.state, p.initial, {.chunk = 7, .muon = true}).o;
  const auto project = [&](size_t j, const Tensor& x) {
    return at::matmul(x.transpose(1, 2), p.state.weights[j].transpose(2, 3)).transpose(1, 2);
  };
  EXPECT_LT(lact_error(o, project(1, at::silu(project(0, p.q)) * project(2, p.q))), 1e-14);
}

/// The first update is the gradient of sum_i f(k_i) . v_i, here by autograd, with the rows' norms put back.
TEST(Lact, UpdatesFollowTheObjective) {
  Problem p(4, 1);
  p.learns.lr.fill_(0.05);
  p.learns.momentum.reset();
  const LactState next = lact_update(p.state, p.learns, p.initial, {.chunk = 4});
  std::vector<Tensor> w;
  for (const Tensor& x : p.state.weights) w.push_back(x[0].detach().requires_grad_());
  const Tensor k = p.learns.k[0].transpose(0, 1), v = p.learns.v[0].transpose(0, 1);
  const auto times = [](const Tensor& x, const Tensor& weight) { return x.matmul(weight.transpose(1, 2)); };
  const Tensor f = times(at::silu(times(k, w[0])) * times(k, w[2]), w[1]);
  const auto gradients = torch::autograd::grad({(f * v).sum()}, w);
  for (size_t j = 0; j < 3; ++j) {
    const Tensor moved = w[j].detach() + 0.05 * gradients[j];
    const Tensor norm = p.initial[j].norm(2, -1, true) / (moved.norm(2, -1, true) + 1e-5);
    EXPECT_LT(lact_error(next.weights[j][0], moved * norm), 1e-13);
  }
}

TEST(Lact, ChunksCanBeGoneThroughOneByOne) {
  for (const bool muon : {false, true})
    for (const bool prenorm : {false, true}) {
      const Problem p(10);
      const LactRule rule{.chunk = 4, .muon = muon, .prenorm = prenorm};
      const Tensor whole = lact(p.q, p.learns, p.state, p.initial, rule).o;
      LactState state = p.state;
      for (int64_t begin = 0; begin < 10; begin += 4) {
        const int64_t count = std::min<int64_t>(4, 10 - begin);
        for (int64_t t = begin; t < begin + count; ++t)
          EXPECT_LT(lact_error(lact_read(state.weights, p.q.select(1, t)), whole.select(1, t)), 1e-9);
        if (count == 4) state = lact_update(state, p.part(begin, 4), p.initial, rule);
      }
    }
}

TEST(Lact, PackedSequencesAreSeparateCalls) {
  const Problem p(13, 1);
  const LactRule rule{.chunk = 3, .muon = true};
  const std::vector<int64_t> lengths{4, 0, 8, 1};
  const Packing packing = Packing::packed(lengths);
  LactState state;
  for (size_t j = 0; j < 3; ++j) state.weights[j] = p.state.weights[j].repeat({4, 1, 1, 1});
  const Tensor o = lact(p.q, p.learns, state, p.initial, rule, packing.cu_seqlens()).o;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const int64_t begin = packing.offsets()[n];
    const Tensor alone =
        lact(p.q.narrow(1, begin, lengths[n]), p.part(begin, lengths[n]), p.state, p.initial, rule).o;
    EXPECT_LT(lact_error(o.narrow(1, begin, lengths[n]), alone), 1e-10) << "sequence " << n;
  }
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  at::manual_seed(1);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 6, 9}, {3, 9, 6}, {3, 1, 4}}) {
    const Tensor x = at::randn(shape, at::kDouble);
    const Tensor values = at::linalg_svdvals(newton_schulz(x, muon_steps()));
    EXPECT_LT(values.max().item<double>(), 1.3);
    EXPECT_GT(values.min().item<double>(), 0.3);
  }
  const Tensor zero = at::zeros({2, 3, 4}, at::kDouble).requires_grad_();
  const Tensor y = newton_schulz(zero, muon_steps());
  EXPECT_EQ(y.abs().max().item<double>(), 0);
  EXPECT_TRUE(torch::autograd::grad({y.sum()}, {zero})[0].isfinite().all().item<bool>());
}

TEST(NewtonSchulz, GradientIsAFiniteDifference) {
  at::manual_seed(2);
  const Tensor x = at::randn({5, 4, 3}, at::kDouble).requires_grad_();
  const Tensor up = at::randn({5, 4, 3}, at::kDouble), direction = at::randn({5, 4, 3}, at::kDouble);
  const auto value = [&](double s) {
    return (newton_schulz(x.detach() + s * direction, lact_muon_steps()) * up).sum().item<double>();
  };
  const double found =
      (torch::autograd::grad({newton_schulz(x, lact_muon_steps())}, {x}, {up})[0] * direction)
          .sum()
          .item<double>();
  constexpr double h = 1e-5;
  const double expected = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h);
  EXPECT_NEAR(found, expected, 1e-6 * std::abs(expected));
}

}  // namespace
}  // namespace prism::test
