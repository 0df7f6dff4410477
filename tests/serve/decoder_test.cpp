#include "serve/decoder.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mixers/threaded_linear.h"

namespace prism {
namespace {

constexpr int64_t kVocabulary = 29, kPrompt = 7, kSteps = 6;

/// Mixers that a language model takes.
std::vector<std::string> mixers() {
  std::vector<std::string> all;
  for (const std::string& name : mixer_names()) {
    const auto spec = make_mixer_spec(name);
    if (!spec->needs_positions() && !spec->needs_times()) all.push_back(name);
  }
  all.emplace_back("prism*2,softmax_attention");
  return all;
}

std::shared_ptr<LanguageModel> make(const std::string& mixer) {
  LanguageModelSpec spec(mixer);
  Settings settings;
  spec.bind(settings);
  spec.model.width = 16, spec.model.blocks = 2, spec.model.ffn_width = 24;
  auto model = std::make_shared<LanguageModel>(spec, kVocabulary, 7);
  model->eval();
  return model;
}

at::Tensor tokens_BT() {
  const at::Tensor row = (at::arange(kPrompt + kSteps, at::kLong) * 7 + 3).remainder(kVocabulary);
  return at::stack({row, (row * 3 + 1).remainder(kVocabulary)});
}

/// Logits of each step after a prefill, [B,steps,vocabulary].
at::Tensor decoded(LanguageModel& model, Precision precision) {
  const at::NoGradGuard no_gradient;
  const at::Tensor tokens = tokens_BT();
  LanguageModelState state;
  {
    const Autocast autocast(at::kCPU, precision);
    model.prefill(tokens.narrow(1, 0, kPrompt), Packing::rows(), state);
  }
  Decoder decoder(model, state, {.precision = precision});
  std::vector<at::Tensor> all;
  for (int64_t t = kPrompt; t < kPrompt + kSteps; ++t)
    all.push_back(decoder.step(tokens.select(1, t)).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  EXPECT_EQ(state.blocks.at(1).lengths, std::vector<int64_t>(2, kPrompt + kSteps));
  return at::stack(all, 1);
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

/// Takes steps with and without and compares outputs, states and places.
void expect_in_place(LanguageModel& model, const std::string& mixer) {
  LanguageModelState free, fixed;
  for (LanguageModelState* state : {&free, &fixed})
    model.prefill(tokens_BT().narrow(1, 0, kPrompt), Packing::rows(), *state);
  const LanguageModelState places = fixed;
  for (int64_t t = kPrompt; t < kPrompt + kSteps; ++t) {
    const at::Tensor now = tokens_BT().select(1, t), expected = model.step(now, free);
    EXPECT_TRUE(at::equal(step_in_place(model, now, fixed), expected)) << mixer << " " << t;
    for (size_t block = 0; block < free.blocks.size(); ++block)
      for (const auto& [name, tensor] : free.blocks[block].tensors) {
        EXPECT_TRUE(at::equal(fixed.blocks[block].tensors.at(name), tensor))
            << mixer << " " << name << " " << t;
        EXPECT_TRUE(fixed.blocks[block].tensors.at(name).is_same(places.blocks[block].tensors.at(name)))
            << mixer << " " << name;
      }
  }
}

class Decoding : public ::testing::TestWithParam<std::string> {};

TEST_P(Decoding, LogitsAreThoseOfTheForwardPass) {
  const at::NoGradGuard no_gradient;
  const auto model = make(GetParam());
  const at::Tensor h = model->forward(tokens_BT(), Packing::rows());
  const at::Tensor expected = model->logits(h.narrow(1, kPrompt, kSteps));
  EXPECT_LT(relative_error(decoded(*model, Precision::kFp32), expected), 1e-4);
  const at::Tensor rounded = decoded(*model, Precision::kBf16);
  EXPECT_LT(relative_error(rounded, expected), 0.1);
  EXPECT_GT(relative_error(rounded, expected), 1e-4) << "nothing was rounded";
}

INSTANTIATE_TEST_SUITE_P(Mixers, Decoding, ::testing::ValuesIn(mixers()), [](const auto& chosen) {
  std::string name = chosen.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(Decoder, AStepInPlaceIsAStep) {
  const at::NoGradGuard no_gradient;
  int repeating = 0;
  for (const std::string& mixer : mixers()) {
    const auto model = make(mixer);
    if (!model->steps_repeat()) continue;
    ++repeating;
    expect_in_place(*model, mixer);
  }
  EXPECT_GE(repeating, 14);
}

TEST(Decoder, StartsWithoutAPrefill) {
  const at::NoGradGuard no_gradient;
  const auto model = make("prism");
  const at::Tensor tokens = tokens_BT(), h = model->forward(tokens, Packing::rows());
  LanguageModelState state;
  Decoder decoder(*model, state, {});
  for (int64_t t = 0; t < 3; ++t)
    EXPECT_LT(relative_error(decoder.step(tokens.select(1, t)), model->logits(h.select(1, t))), 1e-4) << t;
}

TEST(Decoder, StepsRepeatWhereTheStateIsFixed) {
  for (const char* mixer : {"prism", "gated_delta_net", "mamba2", "rwkv7", "gla"})
    EXPECT_TRUE(make(mixer)->steps_repeat()) << mixer;
  for (const char* mixer : {"softmax_attention", "prism,softmax_attention", "ttt_linear", "titans", "mom"})
    EXPECT_FALSE(make(mixer)->steps_repeat()) << mixer;
}

TEST(Decoder, ProductsOfASingleRowHaveTheSameBitsOnAnyNumberOfThreads) {
  const at::NoGradGuard no_gradient;
  const int before = at::get_num_threads();
  for (const int64_t rows : {0, 1, 5, 8, 9, 1000}) {
    const at::Tensor x = at::randn({1, 67}).requires_grad_(), weight = at::randn({rows, 67}).requires_grad_();
    std::vector<at::Tensor> products;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      products.push_back(threaded_linear(x, weight));
    }
    const at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
    EXPECT_EQ(products[0].sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(products[0].to(at::kDouble), expected, 1e-5, 1e-5)) << rows;
    EXPECT_TRUE(at::equal(products[0], products[1]) && at::equal(products[0], products[2])) << rows;
  }
  at::set_num_threads(before);
}

TEST(Decoder, LikeliestTokensAreTheLowestOfEquals) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), low = -std::numeric_limits<float>::infinity();
  const at::Tensor logits = at::tensor({1.0F, 3.0F, 3.0F, nan, 2.0F, low, nan, nan, nan}).view({3, 3});
  EXPECT_TRUE(at::equal(likeliest_tokens(logits), at::tensor({1, 1, -1}, at::kLong)));
}

}  // namespace
}  // namespace prism
