// What every mixer promises, over the list of mixer_cases.h.
#include <gtest/gtest.h>

#include <algorithm>

#include "mixers/mixer_cases.h"

namespace prism::test {
namespace {

class MixerContract : public ::testing::TestWithParam<MixerCase> {
 protected:
  void SetUp() override { mixer_ = build(GetParam()); }
  int64_t width() const { return GetParam().width; }
  at::Tensor rows(int64_t sequences, int64_t tokens) const {
    return random_input({sequences, tokens, width()});
  }
  std::shared_ptr<Mixer> mixer_;
};

TEST_P(MixerContract, StepByStepIsForward) {
  const at::NoGradGuard no_gradient;
  const at::Tensor x = rows(3, 9), y = mixer_->forward(x, Packing::rows());
  MixerState state;
  for (int64_t t = 0; t < 9; ++t)
    EXPECT_LT(relative_error(mixer_->step(x.select(1, t), state), y.select(1, t)), 1e-11) << "token " << t;
  EXPECT_EQ(state.lengths, (std::vector<int64_t>{9, 9, 9}));
}

TEST_P(MixerContract, AnySplitIsForward) {
  const at::NoGradGuard no_gradient;
  const at::Tensor x = rows(2, 9), y = mixer_->forward(x, Packing::rows());
  for (const int64_t cut : {0, 1, 2, 4, 8, 9}) {
    MixerState state;
    const at::Tensor head = mixer_->prefill(x.narrow(1, 0, cut), Packing::rows(), state);
    const at::Tensor tail = mixer_->prefill(x.narrow(1, cut, 9 - cut), Packing::rows(), state);
    EXPECT_LT(relative_error(at::cat({head, tail}, 1), y), 1e-11) << "cut at " << cut;
  }
}

TEST_P(MixerContract, PackedSequencesAreSeparateCalls) {
  const at::NoGradGuard no_gradient;
  const std::vector<int64_t> lengths{3, 0, 1, 9, 0, 2};
  const at::Tensor x = rows(1, 15);
  const Packing packing = Packing::packed(lengths);
  const at::Tensor y = mixer_->forward(x, packing);
  MixerState packed_state;
  EXPECT_LT(relative_error(mixer_->prefill(x, packing, packed_state), y), 1e-11);
  EXPECT_EQ(packed_state.lengths, lengths);
  for (size_t n = 0; n < lengths.size(); ++n) {
    const at::Tensor own = x.narrow(1, packing.offsets()[n], lengths[n]);
    MixerState state;
    const at::Tensor alone = mixer_->prefill(own, Packing::rows(), state);
    EXPECT_LT(relative_error(y.narrow(1, packing.offsets()[n], lengths[n]), alone), 1e-11)
        << "sequence " << n;
    const at::Tensor next = random_input({1, width()}, 11 + n);
    MixerState cut = packed_state;  // the state of this sequence alone
    cut.lengths = {lengths[n]};
    for (auto& [name, tensor] : cut.tensors) tensor = tensor.narrow(0, static_cast<int64_t>(n), 1).clone();
    EXPECT_LT(relative_error(mixer_->step(next, cut), mixer_->step(next, state)), 1e-11) << "sequence " << n;
  }
}

TEST_P(MixerContract, PackedPrefillContinues) {
  const at::NoGradGuard no_gradient;
  const at::Tensor x = rows(1, 12);
  const at::Tensor whole = mixer_->forward(x, Packing::packed({7, 5}));
  MixerState state;
  mixer_->prefill(at::cat({x.narrow(1, 0, 3), x.narrow(1, 7, 4)}, 1), Packing::packed({3, 4}), state);
  const at::Tensor rest =
      mixer_->prefill(at::cat({x.narrow(1, 3, 4), x.narrow(1, 11, 1)}, 1), Packing::packed({4, 1}), state);
  EXPECT_LT(relative_error(rest, at::cat({whole.narrow(1, 3, 4), whole.narrow(1, 11, 1)}, 1)), 1e-11);
}

TEST_P(MixerContract, NeighboursAndTheFutureDoNotMatter) {
  const at::NoGradGuard no_gradient;
  const at::Tensor x = rows(3, 8), y = mixer_->forward(x, Packing::rows());
  at::Tensor changed = x.clone();
  changed.select(0, 0).add_(1);
  changed.select(0, 2).mul_(-3);
  changed.select(0, 1).narrow(0, 5, 3).add_(2);
  const at::Tensor again = mixer_->forward(changed, Packing::rows());
  EXPECT_TRUE(at::equal(again.select(0, 1).narrow(0, 0, 5), y.select(0, 1).narrow(0, 0, 5)));
  EXPECT_GT(relative_error(again.select(0, 1).narrow(0, 5, 3), y.select(0, 1).narrow(0, 5, 3)), 1e-3);
}

TEST_P(MixerContract, RepeatsAreBitEqual) {
  const at::Tensor x = rows(1, 20).requires_grad_();
  const Packing packing = Packing::packed({11, 9});
  std::vector<at::Tensor> results;
  for (int repeat = 0; repeat < 2; ++repeat) {
    mixer_->zero_grad();
    x.mutable_grad() = at::Tensor();
    const at::Tensor y = mixer_->forward(x, packing);
    y.square().sum().backward();
    at::Tensor all = at::cat({y.flatten(), x.grad().flatten()}).detach();
    for (const auto& parameter : mixer_->parameters()) all = at::cat({all, parameter.grad().flatten()});
    results.push_back(all);
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST_P(MixerContract, GradientsAreFiniteDifferences) {
  const at::Tensor x = rows(1, 9).requires_grad_();
  const Packing packing = Packing::packed({6, 1, 2});
  const at::Tensor up = random_input({1, 9, width()}, 3);
  (mixer_->forward(x, packing) * up).sum().backward();
  std::vector<std::pair<std::string, at::Tensor>> inputs{{"x", x}};
  for (const auto& own : mixer_->named_parameters()) inputs.emplace_back(own.key(), own.value());
  const at::NoGradGuard no_gradient;
  for (const auto& [name, tensor] : inputs) {
    const at::Tensor& input = tensor;  // a lambda of clang's captures no structured binding
    ASSERT_TRUE(input.grad().defined()) << name;
    const at::Tensor random = random_input(input.sizes(), 5), saved = input.detach().clone();
    const at::Tensor direction = random / random.norm();
    const auto value = [&](double distance) {
      input.copy_(saved + distance * direction);
      return (mixer_->forward(x, packing) * up).sum().item<double>();
    };
    constexpr double kStep = 1e-4;  // fourth-order differences
    const double expected =
        (8 * (value(kStep) - value(-kStep)) - (value(2 * kStep) - value(-2 * kStep))) / (12 * kStep);
    input.copy_(saved);
    const double found = (input.grad() * direction).sum().item<double>();
    EXPECT_NEAR(found, expected, 1e-7 * GetParam().amplifies * std::max(1.0, std::abs(expected))) << name;
  }
}

TEST_P(MixerContract, StateSizeIsTrue) {
  const at::NoGradGuard no_gradient;
  for (const int64_t tokens : {1, 5}) {
    MixerState state;
    mixer_->prefill(rows(2, tokens), Packing::rows(), state);
    int64_t floats = 0;
    for (const auto& [name, tensor] : state.tensors) floats += tensor.numel() / 2;
    EXPECT_EQ(floats, mixer_->state_size(tokens));
    for (const auto& [name, tensor] : state.tensors) EXPECT_EQ(tensor.size(0), 2) << name;
  }
}

TEST_P(MixerContract, EmptySequencesAndSingleTokens) {
  const at::NoGradGuard no_gradient;
  EXPECT_EQ(mixer_->forward(rows(2, 0), Packing::rows()).sizes(), at::IntArrayRef({2, 0, width()}));
  EXPECT_EQ(mixer_->forward(rows(1, 0), Packing::packed({0, 0})).sizes(), at::IntArrayRef({1, 0, width()}));
  const at::Tensor one = mixer_->forward(rows(1, 1), Packing::rows());
  EXPECT_TRUE(one.isfinite().all().item<bool>());
}

TEST_P(MixerContract, NamedParametersAreAllThereIs) {
  const at::NoGradGuard no_gradient;
  const auto other = build(GetParam(), 99);
  const at::Tensor x = rows(1, 6);
  EXPECT_GT(relative_error(other->forward(x, Packing::rows()), mixer_->forward(x, Packing::rows())), 1e-3);
  auto theirs = other->named_parameters();
  for (const auto& own : mixer_->named_parameters()) theirs[own.key()].copy_(own.value());
  EXPECT_TRUE(at::equal(other->forward(x, Packing::rows()), mixer_->forward(x, Packing::rows())));
}

TEST_P(MixerContract, SinglePrecisionIsNearDouble) {
  const at::NoGradGuard no_gradient;
  const at::Tensor x = rows(1, 33).to(at::kFloat);
  const at::Tensor expected = mixer_->forward(x.to(at::kDouble), Packing::packed({30, 3}));
  const auto single = build(GetParam());
  single->to(at::kFloat);
  const at::Tensor found = single->forward(x, Packing::packed({30, 3}));
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_LT(relative_error(found, expected), 2e-5 * GetParam().amplifies);
}

INSTANTIATE_TEST_SUITE_P(All, MixerContract, ::testing::ValuesIn(mixer_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(SoftmaxAttention, CachesGrowAsTheyFill) {
  const at::NoGradGuard no_gradient;
  const auto mixer = build({"softmax_attention", "softmax_attention"});
  const at::Tensor x = random_input({2, 220, 8}), y = mixer->forward(x, Packing::rows());
  MixerState state;
  mixer->prefill(x.narrow(1, 0, 3), Packing::rows(), state);
  int64_t reallocated = 0;
  for (int64_t t = 3; t < 220; ++t) {
    const at::Tensor before = state.tensors.at("k");
    EXPECT_LT(relative_error(mixer->step(x.select(1, t), state), y.select(1, t)), 1e-11) << "token " << t;
    reallocated += !before.is_alias_of(state.tensors.at("k"));
  }
  EXPECT_LE(reallocated, 4);
}

TEST(MixerRegistry, EveryMixerHasACaseAndASummary) {
  const auto cases = mixer_cases();
  for (const std::string& name : mixer_names()) {
    EXPECT_FALSE(mixer_summary(name).empty());
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const MixerCase& c) { return c.mixer == name; }))
        << name << " is not in mixer_cases.h";
  }
}

}  // namespace
}  // namespace prism::test
