#include "prism/models/language_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "prism/core/error.h"
#include "prism/ops/softmax_loss.h"
#include "prism/ops/target_log_probabilities.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 29;

LanguageModelSpec small(const std::string& mixer, int64_t blocks = 2) {
  LanguageModelSpec spec(mixer);
  Settings settings;
  spec.bind(settings);
  spec.model.width = 16, spec.model.blocks = blocks, spec.model.ffn_width = 24;
  return spec;
}

std::shared_ptr<LanguageModel> make(const std::string& mixer) {
  auto model = std::make_shared<LanguageModel>(small(mixer), kVocabulary, 7);
  model->to(at::kDouble);
  model->eval();
  return model;
}

at::Tensor tokens(int64_t count, int64_t seed = 3) {
  return (at::arange(count, at::kLong) * 7 + seed * 5).remainder(kVocabulary);
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

class LanguageModels : public ::testing::TestWithParam<std::string> {};

TEST_P(LanguageModels, PackedDocumentsAreAsAlone) {
  const at::NoGradGuard no_gradient;
  const auto model = make(GetParam());
  const std::vector<int64_t> lengths = {5, 1, 0, 11};
  const at::Tensor all = tokens(17);
  const at::Tensor h = model->forward(all.unsqueeze(0), Packing::packed(lengths)).squeeze(0);
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    if (length > 0) {
      const at::Tensor alone = model->forward(all.narrow(0, begin, length).unsqueeze(0), Packing::rows());
      EXPECT_LT(distance(h.narrow(0, begin, length), alone.squeeze(0)), 1e-10);
    }
    begin += length;
  }
}

TEST_P(LanguageModels, PrefillInChunksAndStepsAreForward) {
  const at::NoGradGuard no_gradient;
  const auto model = make(GetParam());
  const at::Tensor all = at::stack({tokens(12, 1), tokens(12, 2)});
  const at::Tensor expected = model->forward(all, Packing::rows());
  LanguageModelState state;
  const at::Tensor first = model->prefill(all.narrow(1, 0, 4), Packing::rows(), state);
  const at::Tensor second = model->prefill(all.narrow(1, 4, 3), Packing::rows(), state);
  EXPECT_LT(distance(at::cat({first, second}, 1), expected.narrow(1, 0, 7)), 1e-10);
  for (int64_t t = 7; t < 12; ++t)
    EXPECT_LT(distance(model->step(all.select(1, t), state), expected.select(1, t)), 1e-10) << t;
}

INSTANTIATE_TEST_SUITE_P(Mixers, LanguageModels,
                         ::testing::Values("prism", "gated_delta_net", "softmax_attention",
                                           "prism*2,softmax_attention", "mamba2"),
                         [](const auto& chosen) {
                           std::string name = chosen.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

/// Parameters of a named size with the vocabulary of GPT-2, from a model of one block.
int64_t parameters_of(const std::string& size, const std::string& mixer) {
  LanguageModelSpec spec(mixer);
  Settings settings;
  spec.bind(settings);
  settings.set_text("model.size", size, "test");
  spec.fit_to_size(settings);
  const int64_t blocks = spec.model.blocks, width = spec.model.width;
  spec.model.blocks = 1;
  const LanguageModel one(spec, 1, 1);
  return 50257 * width + blocks * (parameter_count(one) - 2 * width) + width;
}

/// docs/language-model.md has the sums.
TEST(LanguageModelSizes, ParameterCountsAreThoseComputedByHand) {
  EXPECT_EQ(parameters_of("130m", "gated_delta_net"), 130'851'984);
  EXPECT_EQ(parameters_of("130m", "prism"), 137'939'088);
  EXPECT_EQ(parameters_of("340m", "gated_delta_net"), 385'652'096);
  EXPECT_EQ(parameters_of("340m", "prism"), 404'600'192);
  EXPECT_EQ(parameters_of("1.3b", "gated_delta_net"), 1'438'981'888);
  EXPECT_EQ(parameters_of("1.3b", "prism"), 1'477'271'296);
}

TEST(LanguageModelSizes, WhatARecipeChoseStays) {
  LanguageModelSpec spec;
  Settings settings;
  spec.bind(settings);
  settings.set_text("model.size", "340m", "test");
  settings.set_text("model.width", "512", "test");
  settings.set_text("mixer.heads", "4", "test");
  spec.fit_to_size(settings);
  EXPECT_EQ(spec.model.width, 512);
  EXPECT_EQ(spec.model.blocks, 24);
  EXPECT_EQ(std::get<int64_t>(settings.find("mixer.heads")->get()), 4);
  EXPECT_EQ(std::get<int64_t>(settings.find("mixer.solver_rank")->get()), 128);
}

TEST(LanguageModel, MixersThatNeedMoreThanTokensAreRefused) {
  for (const char* mixer : {"sasrec_block", "hstu"}) {
    try {
      LanguageModel(small(mixer), kVocabulary, 1);
      FAIL() << mixer;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(mixer));
    }
  }
}

TEST(LanguageModel, SameSeedGivesTheSameWeights) {
  const LanguageModel a(small("prism"), kVocabulary, 1), b(small("prism"), kVocabulary, 1),
      c(small("prism"), kVocabulary, 2);
  EXPECT_TRUE(at::equal(a.embedding(), b.embedding()));
  EXPECT_FALSE(at::equal(a.embedding(), c.embedding()));
}

/// The head's loss, which never holds all logits, against the plain one.
TEST(LanguageModel, LossAndGradientsAreThoseOfThePlainCrossEntropy) {
  constexpr int64_t kPositions = 300, kWords = 5000;  // several blocks of positions
  const at::Tensor h = (at::randn({kPositions, 16}, at::kDouble)).requires_grad_();
  const at::Tensor table = (at::randn({kWords, 16}, at::kDouble)).requires_grad_();
  const at::Tensor targets = at::randint(kWords, {kPositions}, at::kLong);
  const at::Tensor plain = at::cross_entropy_loss(at::linear(h, table), targets);
  plain.backward();
  const at::Tensor d_h = h.grad().clone(), d_table = table.grad().clone();
  h.mutable_grad().reset(), table.mutable_grad().reset();
  const at::Tensor chunked = full_softmax_loss(h, table, targets);
  chunked.backward();
  EXPECT_NEAR(chunked.item<double>(), plain.item<double>(), 1e-12 * std::abs(plain.item<double>()));
  EXPECT_LT(distance(h.grad(), d_h), 1e-14);
  EXPECT_LT(distance(table.grad(), d_table), 1e-14);
}

TEST(TargetLogProbabilities, AreThoseOfLogSoftmax) {
  const at::Tensor h = at::randn({50, 8}, at::kDouble), table = at::randn({40'000, 8}, at::kDouble);
  const at::Tensor targets = at::randint(40'000, {50}, at::kLong);
  const at::Tensor scores = at::linear(h, table);
  const at::Tensor expected = at::log_softmax(scores, 1).gather(1, targets.unsqueeze(1)).squeeze(1);
  EXPECT_LT(distance(target_log_probabilities(h, table, targets), expected), 1e-12);
  const at::Tensor best = scores.argmax(1);
  EXPECT_TRUE(target_is_first(h, table, best).all().item<bool>());
  EXPECT_FALSE(target_is_first(h, table, (best + 1).remainder(40'000)).any().item<bool>());
  EXPECT_THROW(target_log_probabilities(h, table, targets.narrow(0, 0, 3)), Error);
}

}  // namespace
}  // namespace prism
