#include "prism/models/losses.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/negatives.h"
#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/ops/softmax_loss.h"

namespace prism {
namespace {

constexpr int64_t kPositions = 37, kItems = 23, kWidth = 6;

struct Inputs {
  at::Tensor h, items, targets, counts;
  explicit Inputs(at::ScalarType dtype = at::kDouble) {
    at::manual_seed(1);
    h = at::randn({kPositions, kWidth}, dtype).requires_grad_();
    items = at::randn({kItems, kWidth}, dtype).requires_grad_();
    targets = at::randint(kItems, {kPositions}, at::kLong);
    counts = at::randint(1, 50, {kItems}, at::kLong);
  }
};

/// The same loss from ATen's differentiable operations.
at::Tensor composed(const LossConfig& c, const Inputs& in, uint64_t seed, int64_t step) {
  const at::Tensor &h = in.h, &items = in.items;
  const bool softmax = c.loss == Loss::kFullSoftmax || c.loss == Loss::kSampledSoftmax;
  if (c.loss == Loss::kFullSoftmax)
    return at::cross_entropy_loss(at::matmul(h, items.t()) / c.temperature, in.targets);
  const bool popular = c.loss == Loss::kSampledSoftmax && c.log_q;
  const int64_t n = c.loss == Loss::kBce ? 1 : c.negatives;
  const Candidates drawn =
      draw_candidates(in.targets, kItems, n, popular ? in.counts : at::Tensor(), seed, step);
  at::Tensor scores = (at::embedding(items, drawn.ids) * h.unsqueeze(1)).sum(-1);
  if (softmax) {
    scores = scores / c.temperature;
    if (popular) scores = scores - drawn.correction;
    return at::cross_entropy_loss(scores, at::zeros({kPositions}, at::kLong));
  }
  const double alpha = static_cast<double>(n) / (kItems - 1);
  const double weight = c.loss == Loss::kBce ? 1 : alpha * (c.gbce_t * (1 - 1 / alpha) + 1 / alpha);
  const at::Tensor sum =
      -weight * at::log_sigmoid(scores.select(1, 0)) - at::log_sigmoid(-scores.narrow(1, 1, n)).sum(1);
  return sum.mean() / (c.loss == Loss::kBce ? 1.0 : static_cast<double>(1 + n));
}

class EveryLoss : public ::testing::TestWithParam<LossConfig> {};

TEST_P(EveryLoss, ValueAndGradientsAreTheComposedOnes) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    Inputs fused(dtype), plain(dtype);
    const double tolerance = dtype == at::kDouble ? 1e-11 : 2e-6;
    const at::Tensor loss =
        next_item_loss(GetParam(), fused.h, fused.items, fused.targets, fused.counts, 3, 4);
    const at::Tensor expected = composed(GetParam(), plain, 3, 4);
    (2 * loss).backward();
    (2 * expected).backward();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance * std::abs(expected.item<double>()));
    const auto error = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a - b).norm() / b.norm()).item<double>();
    };
    EXPECT_LT(error(fused.h.grad(), plain.h.grad()), tolerance);
    EXPECT_LT(error(fused.items.grad(), plain.items.grad()), tolerance);
  }
}

TEST_P(EveryLoss, RepeatsAreBitEqualAndStepsDiffer) {
  const Inputs in(at::kFloat);
  const auto value = [&](int64_t step) {
    return next_item_loss(GetParam(), in.h, in.items, in.targets, in.counts, 3, step);
  };
  EXPECT_TRUE(at::equal(value(1), value(1)));
  if (GetParam().loss != Loss::kFullSoftmax) {
    EXPECT_FALSE(at::equal(value(1), value(2)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EveryLoss,
    ::testing::Values(LossConfig{}, LossConfig{.temperature = 0.3},
                      LossConfig{.loss = Loss::kSampledSoftmax, .negatives = 5},
                      LossConfig{
                          .loss = Loss::kSampledSoftmax, .negatives = 7, .temperature = 0.5, .log_q = true},
                      LossConfig{.loss = Loss::kBce}, LossConfig{.loss = Loss::kGbce, .negatives = 9},
                      LossConfig{.loss = Loss::kGbce, .negatives = 4, .gbce_t = 0}));

TEST(FullSoftmax, ExtremeScoresStayFinite) {
  Inputs in(at::kFloat);
  const at::Tensor h = (in.h.detach() * 1e4).requires_grad_();
  const at::Tensor loss = full_softmax_loss(h, in.items, in.targets);
  loss.backward();
  EXPECT_TRUE(loss.isfinite().item<bool>());
  EXPECT_TRUE(h.grad().isfinite().all().item<bool>());
}

TEST(FullSoftmax, ManyBlocksOfPositions) {
  at::manual_seed(2);
  const at::Tensor h = at::randn({700, 4}).requires_grad_(), items = at::randn({9000, 4}).requires_grad_();
  const at::Tensor targets = at::randint(9000, {700}, at::kLong);
  full_softmax_loss(h, items, targets).backward();
  const at::Tensor h2 = h.detach().to(at::kDouble).requires_grad_(),
                   items2 = items.detach().to(at::kDouble).requires_grad_();
  at::cross_entropy_loss(at::matmul(h2, items2.t()), targets).backward();
  EXPECT_LT(((h.grad() - h2.grad()).norm() / h2.grad().norm()).item<double>(), 1e-5);
  EXPECT_LT(((items.grad() - items2.grad()).norm() / items2.grad().norm()).item<double>(), 1e-5);
}

TEST(FullSoftmax, NeedsFittingShapes) {
  const Inputs in;
  EXPECT_THROW(full_softmax_loss(in.h, at::randn({kItems, kWidth + 1}, at::kDouble), in.targets), Error);
  EXPECT_THROW(full_softmax_loss(in.h.narrow(0, 0, 0), in.items, in.targets.narrow(0, 0, 0)), Error);
}

TEST(Negatives, AreNeverTheTargetAndCoverAllOtherItems) {
  const at::Tensor targets = at::zeros({1}, at::kLong);
  const Candidates drawn = draw_candidates(targets, 5, 4000, {}, 1, 0);
  const at::Tensor histogram = drawn.ids.narrow(1, 1, 4000).flatten().bincount({}, 5);
  EXPECT_EQ(histogram[0].item<int64_t>(), 0);
  for (int64_t i = 1; i < 5; ++i) EXPECT_NEAR(histogram[i].item<double>(), 1000, 120);
}

TEST(Negatives, FollowThePositionInTheStep) {
  const at::Tensor targets = at::arange(20, at::kLong);
  for (const at::Tensor& counts : {at::Tensor(), at::arange(1, 31, at::kLong)}) {
    const Candidates whole = draw_candidates(targets, 30, 6, counts, 1, 4);
    const Candidates end =
        draw_candidates(targets.narrow(0, 13, 7), 30, 6, counts, 1, 4, /*first_position=*/13);
    EXPECT_TRUE(at::equal(whole.ids.narrow(0, 13, 7), end.ids));
  }
}

TEST(Negatives, FollowPopularityWithTheirCorrection) {
  const at::Tensor targets = at::full({1}, 2, at::kLong), counts = at::tensor({1, 0, 50, 3, 6}, at::kLong);
  const Candidates drawn = draw_candidates(targets, 5, 10000, counts, 1, 0);
  const at::Tensor histogram = drawn.ids.narrow(1, 1, 10000).flatten().bincount({}, 5);
  EXPECT_EQ(histogram[1].item<int64_t>() + histogram[2].item<int64_t>(), 0);
  EXPECT_NEAR(histogram[0].item<double>(), 1000, 150);
  EXPECT_NEAR(histogram[3].item<double>(), 3000, 250);
  EXPECT_NEAR(histogram[4].item<double>(), 6000, 250);
  const at::Tensor Q = counts.to(at::kDouble) / 10;
  const at::Tensor expected = at::log(10000 * Q.index_select(0, drawn.ids[0].narrow(0, 1, 10000)));
  EXPECT_LT((drawn.correction[0].narrow(0, 1, 10000) - expected).abs().max().item<double>(), 1e-5);
  EXPECT_EQ(drawn.correction[0][0].item<double>(), 0);
}

TEST(Negatives, NeedSomethingToDraw) {
  EXPECT_THROW(draw_candidates(at::zeros({1}, at::kLong), 1, 3, {}, 1, 0), Error);
  EXPECT_THROW(draw_candidates(at::zeros({1}, at::kLong), 2, 3, at::tensor({5, 0}, at::kLong), 1, 0), Error);
}

/// With log-Q the sampled loss estimates the full one: its mean over many draws approaches it from below.
TEST(SampledSoftmax, WithLogQApproachesTheFullLoss) {
  const Inputs in;
  const double full = full_softmax_loss(in.h, in.items, in.targets).item<double>();
  const LossConfig config{.loss = Loss::kSampledSoftmax, .negatives = 20000, .log_q = true};
  EXPECT_NEAR(next_item_loss(config, in.h, in.items, in.targets, in.counts, 1, 0).item<double>(), full,
              0.02 * full);
}

}  // namespace
}  // namespace prism
