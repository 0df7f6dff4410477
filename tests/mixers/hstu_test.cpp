// HSTU: the layer against its equations, and what the time of the next event means for steps.
#include "prism/mixers/hstu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mixers/mixer_cases.h"
#include "prism/core/error.h"
#include "prism/ops/hstu_attention.h"

namespace prism::test::hstu {
namespace {

using at::Tensor;

constexpr int64_t D = 8, H = 2, K = 4, N = 12;

std::shared_ptr<Hstu> make(const HstuConfig& config = {}) {
  at::manual_seed(1);
  auto mixer = std::make_shared<Hstu>(config, D, N);
  mixer->to(at::kDouble);
  const at::NoGradGuard no_gradient;
  for (auto& own : mixer->named_parameters())  // the initial biases are too small to see
    if (own.key() == "pos_weight" || own.key() == "time_weight") own.value().normal_();
  return mixer;
}

Tensor centred(const Tensor& x) {
  return (x - x.mean(-1, true)) * at::rsqrt(x.var(-1, /*unbiased=*/false, true) + 1e-6);
}

/// The layer's equations for one sequence, one pair of tokens at a time.
Tensor equations(Hstu& mixer, const Tensor& x, const std::vector<int64_t>& seconds) {
  auto own = mixer.named_parameters();
  const int64_t T = x.size(0);
  const auto z = at::silu(at::matmul(centred(x), own["in_weight"].t())).split(D, 1);
  const Tensor v = z[1].view({T, H, K}), q = z[2].view({T, H, K}), k = z[3].view({T, H, K});
  Tensor o = at::zeros({T, H, K}, at::kDouble);
  for (int64_t i = 0; i < T; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t elapsed = std::abs(seconds[std::min(i + 1, T - 1)] - seconds[j]);
      const auto bucket = static_cast<int64_t>(std::log(std::max<double>(1, elapsed)) / 0.301);
      const Tensor bias =
          own["pos_weight"][j - i + N - 1] + own["time_weight"][std::min<int64_t>(128, bucket)];
      o[i] += at::silu((q[i] * k[j]).sum(-1) + bias).unsqueeze(-1) / static_cast<double>(N) * v[j];
    }
  return x + at::matmul(z[0] * centred(o.flatten(1)), own["out_weight"].t()) + own["out_bias"];
}

Tensor gaps_of(const std::vector<int64_t>& seconds) {
  std::vector<int64_t> gaps{0};
  for (size_t t = 1; t < seconds.size(); ++t) gaps.push_back(seconds[t] - seconds[t - 1]);
  return at::tensor(gaps, at::kLong);
}

const std::vector<int64_t> kSeconds{0, 0, 3, 3, 100, 86400, 86401, 10000000, 10000007};

TEST(Hstu, IsItsEquations) {
  const at::NoGradGuard no_gradient;
  const auto mixer = make();
  const Tensor x = random_input({9, D});
  const Tensor y = mixer->forward_with_gaps(x.unsqueeze(0), Packing::rows(), gaps_of(kSeconds).unsqueeze(0));
  EXPECT_LT(relative_error(y.squeeze(0), equations(*mixer, x, kSeconds)), 1e-11);
}

TEST(Hstu, PackedSequencesHaveTheirOwnTimes) {
  const at::NoGradGuard no_gradient;
  const auto mixer = make();
  const Tensor x = random_input({9, D});
  const std::vector<int64_t> first(kSeconds.begin(), kSeconds.begin() + 4),
      second(kSeconds.begin() + 4, kSeconds.end());
  Tensor gaps = at::cat({gaps_of(first), gaps_of(second)});
  gaps[4] = 5555;  // a gap before the first token moves all of its sequence alike
  const Tensor y =
      mixer->forward_with_gaps(x.unsqueeze(0), Packing::packed({4, 5}), gaps.unsqueeze(0)).squeeze(0);
  EXPECT_LT(relative_error(y.narrow(0, 0, 4), equations(*mixer, x.narrow(0, 0, 4), first)), 1e-11);
  EXPECT_LT(relative_error(y.narrow(0, 4, 5), equations(*mixer, x.narrow(0, 4, 5), second)), 1e-11);
}

/// The newest row takes its own time for the next one's: a step is the last row of the sequence so far.
TEST(Hstu, AStepIsTheLastRowOfTheSequenceSoFar) {
  const at::NoGradGuard no_gradient;
  const auto mixer = make();
  const Tensor x = random_input({9, D}), gaps = gaps_of(kSeconds);
  MixerState state;
  for (int64_t t = 0; t < 9; ++t) {
    const Tensor y = mixer->step_with_gaps(x.narrow(0, t, 1), gaps.narrow(0, t, 1), state);
    const std::vector<int64_t> seen(kSeconds.begin(), kSeconds.begin() + t + 1);
    EXPECT_LT(relative_error(y[0], equations(*mixer, x.narrow(0, 0, t + 1), seen)[t]), 1e-11)
        << "token " << t;
  }
}

TEST(Hstu, GradientsOfItsBiasesAreFiniteDifferences) {
  const auto mixer = make();
  const Tensor x = random_input({1, 9, D}), up = random_input({1, 9, D}, 3),
               gaps = gaps_of(kSeconds).unsqueeze(0);
  const auto value = [&] { return (mixer->forward_with_gaps(x, Packing::packed({2, 7}), gaps) * up).sum(); };
  value().backward();
  const at::NoGradGuard no_gradient;
  for (auto& own : mixer->named_parameters()) {
    const Tensor direction = random_input(own.value().sizes(), 5), saved = own.value().clone();
    const auto moved = [&](double step) {
      own.value().copy_(saved + step * direction);
      return value().item<double>();
    };
    constexpr double kStep = 1e-4;
    const double expected =
        (8 * (moved(kStep) - moved(-kStep)) - (moved(2 * kStep) - moved(-2 * kStep))) / (12 * kStep);
    own.value().copy_(saved);
    EXPECT_NEAR((own.value().grad() * direction).sum().item<double>(), expected,
                1e-7 * std::max(1.0, std::abs(expected)))
        << own.key();
  }
}

TEST(Hstu, SequencesEndAtMaxLength) {
  const auto mixer = make();
  EXPECT_NO_THROW(mixer->forward(random_input({1, N, D}), Packing::rows()));
  try {
    mixer->forward(random_input({1, N + 1, D}), Packing::rows());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("a sequence of 13 tokens, max_length is 12"));
  }
}

}  // namespace
}  // namespace prism::test::hstu
