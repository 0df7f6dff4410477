#include "prism/models/recommender.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "prism/core/error.h"
#include "prism/models/losses.h"

namespace prism {
namespace {

struct Settled {
  explicit Settled(const std::string& mixer, bool time_gaps = false) : spec(mixer) {
    spec.model.width = 8;
    spec.model.max_length = 12;
    spec.model.time_gaps = time_gaps;
    spec.model.dropout = 0.3;
  }
  ModelSpec spec;
};

Batch random_batch(const std::vector<int64_t>& lengths, int64_t items, bool gaps = false) {
  const Packing packing = Packing::packed(lengths);
  at::manual_seed(5);
  const int64_t tokens = packing.offsets().back();
  return {at::randint(items, {tokens}, at::kLong),
          gaps ? at::randint(1000000, {tokens}, at::kLong) : at::Tensor(), packing};
}

double error(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

TEST(Recommender, CosineScoresUseVectorsOfUnitLength) {
  const at::NoGradGuard no_gradient;
  Settled settled("prism");
  settled.spec.model.cosine = true;
  Recommender model(settled.spec, 20, 1);
  model.eval();
  for (const at::Tensor& rows : {model.item_vectors(), model.forward(random_batch({7, 3}, 20))})
    EXPECT_LT((rows.norm(2, -1) - 1).abs().max().item<double>(), 1e-5);
}

/// Every mixer, and stacks of several.
std::vector<std::string> mixers_and_stacks() {
  std::vector<std::string> all = mixer_names();
  for (const char* stack : {"prism,softmax_attention", "delta_net*1,mom", "hstu,prism"})
    all.emplace_back(stack);
  return all;
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, PrefillAndStepsAreForward) {
  const at::NoGradGuard no_gradient;
  Recommender model(Settled(GetParam(), true).spec, 20, 1);
  model.eval();
  const Batch batch = random_batch({7, 3, 12}, 20, true);
  const at::Tensor h = model.forward(batch);
  ASSERT_EQ(h.sizes(), at::IntArrayRef({22, 8}));
  RecommenderState state;
  const at::Tensor last = model.prefill(batch, state);
  EXPECT_LT(error(last, h.index_select(0, at::tensor({6, 9, 21}, at::kLong))), 1e-5);
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{7, 3, 12}));

  // The first two sequences once more, all but their last item at once, then that item.
  RecommenderState begun;
  const at::Tensor first = at::tensor({0, 1, 2, 3, 4, 5, 7, 8}, at::kLong);
  model.prefill(
      {batch.items.index_select(0, first), batch.gaps.index_select(0, first), Packing::packed({6, 2})},
      begun);
  const at::Tensor end = at::tensor({6, 9}, at::kLong);
  const at::Tensor stepped =
      model.step(batch.items.index_select(0, end), batch.gaps.index_select(0, end), begun);
  EXPECT_LT(error(stepped, last.narrow(0, 0, 2)), 1e-5);

  RecommenderState empty;
  at::Tensor y;
  for (int64_t t = 0; t < 7; ++t)
    y = model.step(batch.items.narrow(0, t, 1), batch.gaps.narrow(0, t, 1), empty);
  EXPECT_LT(error(y, last.narrow(0, 0, 1)), 1e-5);
}

TEST_P(EveryMixer, LearnsASmallLog) {
  Settled settled(GetParam());
  settled.spec.model.width = 16;
  settled.spec.model.dropout = 0;
  Recommender model(settled.spec, 10, 1);
  const Batch batch = random_batch({12, 12, 12}, 10);
  const at::Tensor targets = (batch.items * 3 + 1).remainder(10);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    model.zero_grad();
    const at::Tensor loss =
        next_item_loss({}, model.forward(batch), model.item_vectors(), targets, {}, 1, step);
    loss.backward();
    const at::NoGradGuard no_gradient;
    for (auto& parameter : model.parameters())
      if (parameter.grad().defined())
        parameter.sub_(0.3 * parameter.grad());  // LaCT's steps need a whole chunk
    if (step == 0) first = loss.item<double>();
    last = loss.item<double>();
  }
  EXPECT_NEAR(first, std::log(10.0), 0.3);
  EXPECT_LT(last, 0.5 * first);
}

/// bf16 products, fp32 residual stream, gates and states: hidden vectors within 3 %, gradients in the same
/// direction. Norms of reads that nearly vanish and Newton-Schulz steps amplify the rounding of what they get
/// in backward (ATLAS: 13 %, with inputs that are within 1 %), so the gradients' lengths are not compared.
TEST_P(EveryMixer, AutocastIsNearSinglePrecision) {
  Settled settled(GetParam());
  settled.spec.model.width = 64;
  Recommender model(settled.spec, 20, 1);
  const Batch batch = random_batch({9, 1, 12}, 20);
  const at::Tensor targets = (batch.items + 1).remainder(20);
  const auto hidden_and_gradients = [&] {
    model.zero_grad();
    const at::Tensor h = model.forward(batch);
    EXPECT_EQ(h.scalar_type(), at::kFloat);
    next_item_loss({}, h, model.item_vectors(), targets, {}, 1, 0).backward();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : model.parameters())
      if (parameter.grad().defined()) gradients.push_back(parameter.grad().flatten());
    return std::pair(h.detach(), at::cat(gradients));
  };
  const auto [h, gradient] = hidden_and_gradients();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto [mixed_h, mixed_gradient] = hidden_and_gradients();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_FALSE(at::equal(mixed_h, h));
  EXPECT_LT(error(mixed_h, h), 0.03);
  const double cosine =
      mixed_gradient.dot(gradient).item<double>() / (mixed_gradient.norm() * gradient.norm()).item<double>();
  EXPECT_GT(cosine, 0.98);
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixer, ::testing::ValuesIn(mixers_and_stacks()), [](const auto& test) {
  std::string name = test.param;
  for (char& letter : name)
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  return name;
});

/// Blocks take the mixers of the pattern in turn.
TEST(Recommender, AStackOfSeveralMixers) {
  ModelSpec spec("prism*2,softmax_attention");
  spec.model.width = 8;
  spec.model.blocks = 7;
  const Recommender model(spec, 20, 1);
  const auto parameters = model.named_parameters();
  for (int block = 1; block <= 7; ++block)
    EXPECT_EQ(parameters.contains(fmt::format("block{}.mixer.conv_weight", block)), block % 3 != 0) << block;
}

/// The next item's time changes the rows before it; steps, prefill and forward agree all the same.
TEST(Recommender, TimesOfTheNextItemReviseTheHistory) {
  const at::NoGradGuard no_gradient;
  Settled settled("hstu");
  Recommender model(settled.spec, 20, 1);
  model.eval();
  EXPECT_TRUE(model.reads_times());
  EXPECT_TRUE(model.revises_history());
  for (auto& own : model.named_parameters())
    if (own.key().ends_with("time_weight")) own.value().normal_();
  const Batch batch = random_batch({6}, 20, true);
  RecommenderState state;
  model.prefill({batch.items.narrow(0, 0, 3), batch.gaps.narrow(0, 0, 3), Packing::packed({3})}, state);
  at::Tensor y;
  for (int64_t t = 3; t < 6; ++t)
    y = model.step(batch.items.narrow(0, t, 1), batch.gaps.narrow(0, t, 1), state);
  const at::Tensor h = model.forward(batch);
  EXPECT_LT(error(y, h.narrow(0, 5, 1)), 1e-5);
  const Batch other{batch.items, batch.gaps * 7, batch.packing};
  EXPECT_GT(error(model.forward(other), h), 1e-3);
}

TEST(Recommender, TheSameSeedGivesTheSameModelAndMasks) {
  const Batch batch = random_batch({5, 4}, 20);
  at::manual_seed(99);
  const at::Tensor before = at::rand({1});
  at::manual_seed(99);
  Recommender one(Settled("prism").spec, 20, 1), two(Settled("prism").spec, 20, 1),
      other(Settled("prism").spec, 20, 2);
  EXPECT_TRUE(at::equal(at::rand({1}), before)) << "building a model moved the default generator";
  EXPECT_TRUE(at::equal(one.item_vectors(), two.item_vectors()));
  EXPECT_FALSE(at::equal(one.item_vectors(), other.item_vectors()));
  one.set_dropout_step(3);
  two.set_dropout_step(3);
  const at::Tensor h = one.forward(batch);
  EXPECT_TRUE(at::equal(h, two.forward(batch)));
  two.set_dropout_step(4);
  EXPECT_FALSE(at::equal(h, two.forward(batch)));
  one.eval();
  two.eval();
  EXPECT_TRUE(at::equal(one.forward(batch), two.forward(batch)));
}

TEST(Recommender, CountsItsParameters) {
  ModelSpec spec("prism");
  spec.model.time_gaps = true;
  Recommender model(spec, 100, 1);
  int64_t total = 0, counted = 0;
  for (const auto& parameter : model.parameters()) total += parameter.numel();
  std::map<std::string, int64_t> parts;
  for (const auto& [part, count] : model.parameter_counts()) counted += count, parts[part] = count;
  EXPECT_EQ(counted, total);
  EXPECT_EQ(parts["item embedding"], 100 * 64);
  EXPECT_EQ(parts["gap embedding"], 64 * 64);
  EXPECT_EQ(parts["block 2 norms and FFN"], 2 * 64 + 2 * 4 * 64 * 64 + 5 * 64);
  EXPECT_EQ(parts["final norm"], 64);
}

TEST(Recommender, ItemFeaturesShapeBothEnds) {
  Recommender model(Settled("prism").spec, 20, 1);
  model.eval();
  const Batch batch = random_batch({5}, 20);
  const at::Tensor plain = model.forward(batch), table = model.item_vectors().clone();
  model.set_item_features(at::randn({20, 3}));
  EXPECT_GT(error(model.item_vectors(), table), 1e-2);
  EXPECT_GT(error(model.forward(batch), plain), 1e-3);
  model.forward(batch).sum().backward();
  bool trained = false;
  for (const auto& own : model.named_parameters())
    if (own.key() == "feature_weight")
      trained = own.value().grad().defined() && own.value().grad().norm().item<double>() > 0;
  EXPECT_TRUE(trained);
  EXPECT_THROW(model.set_item_features(at::randn({19, 3})), Error);
}

TEST(Recommender, PositionsEndAtTheWindow) {
  Recommender model(Settled("sasrec_block").spec, 20, 1);
  EXPECT_TRUE(model.has_positions());
  model.eval();
  RecommenderState state;
  const Batch batch = random_batch({12}, 20);
  model.prefill(batch, state);
  EXPECT_THROW(model.step(batch.items.narrow(0, 0, 1), {}, state), Error);
  EXPECT_THROW(model.forward(random_batch({13}, 20)), Error);
  Recommender prism(Settled("prism").spec, 20, 1);
  EXPECT_FALSE(prism.has_positions());
  EXPECT_EQ(prism.forward(random_batch({40}, 20)).size(0), 40);
}

TEST(Recommender, AnEmptySequenceHasNoLastItem) {
  Recommender model(Settled("prism").spec, 20, 1);
  RecommenderState state;
  EXPECT_THROW(model.prefill(random_batch({3, 0}, 20), state), Error);
}

}  // namespace
}  // namespace prism
