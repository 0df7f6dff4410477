// PRISM's own properties: equivalences, ablation switches, settings errors, initial values.
#include "prism/mixers/prism.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mixers/mixer_cases.h"
#include "prism/core/error.h"
#include "prism/mixers/gated_delta_net.h"

namespace prism::test::prism_mixer {
namespace {

using ::testing::HasSubstr;

template <class M>
std::shared_ptr<M> make(const typename M::Config& config, int64_t width, uint64_t seed = 1) {
  at::manual_seed(seed);
  auto mixer = std::make_shared<M>(config, width);
  mixer->to(at::kDouble);
  return mixer;
}

at::Tensor run(Mixer& mixer, const at::Tensor& x) {
  const at::NoGradGuard no_gradient;
  return mixer.forward(x, Packing::rows());
}

std::string usage_message(const PrismConfig& config, int64_t width) {
  try {
    Prism(config, width);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Prism, WithoutStepsAndConvOnTheProjectionsIsGatedDeltaNet) {
  const at::NoGradGuard no_gradient;
  const auto gdn = make<GatedDeltaNet>({{.heads = 4, .key_heads = 2, .key_width = 6, .value_width = 10}}, 12);
  const auto prism = make<Prism>({.heads = 4,
                                  .steps = 0,
                                  .key_heads = 2,
                                  .key_width = 6,
                                  .value_width = 10,
                                  .conv = ConvPlace::kProjections},
                                 12, 2);
  auto theirs = prism->named_parameters();
  ASSERT_EQ(theirs.size(), gdn->named_parameters().size());
  for (const auto& own : gdn->named_parameters()) {
    ASSERT_EQ(theirs[own.key()].sizes(), own.value().sizes()) << own.key();
    theirs[own.key()].copy_(own.value());
  }
  const at::Tensor x = random_input({2, 21, 12});
  EXPECT_LT(relative_error(run(*prism, x), run(*gdn, x)), 1e-13);
}

/// The layer's equations as a loop over tokens, from the parameters of a tied, full-rank mixer.
at::Tensor token_loop(Prism& mixer, const PrismConfig& c, const at::Tensor& x) {
  auto own = mixer.named_parameters();
  const int64_t T = x.size(0), D = x.size(1), H = c.heads, V = D / H, L = c.steps, W = c.conv_width;
  const at::Tensor padded = at::cat({at::zeros({W - 1, D}, at::kDouble), x});
  at::Tensor S = at::zeros({H, V, V}, at::kDouble);
  std::vector<at::Tensor> y;
  for (int64_t t = 0; t < T; ++t) {
    const at::Tensor window = padded.narrow(0, t, W);
    const at::Tensor u = at::silu((window * own["conv_weight"].t()).sum(0) + own["conv_bias"]);
    const auto z = at::mv(own["in_weight"], u).split_with_sizes({D, L * D, D, L * D, L * H, H});
    const auto unit = [](const at::Tensor& k) { return k * at::rsqrt(k.square().sum(-1, true) + 1e-6); };
    const at::Tensor q = unit(z[0].view({H, V})), k = unit(z[1].view({L, H, V}));
    const at::Tensor p = (z[3] + own["gain_bias"]).view({L, H, V}), beta = at::sigmoid(z[4].view({L, H}));
    const at::Tensor a =
        at::exp(-at::exp(own["A_log"]) * at::softplus(z[5] + own["dt_bias"])).view({H, 1, 1});
    at::Tensor r = z[2].view({H, V}) - u.view({H, V});
    S = a * (S - beta[0].view({H, 1, 1}) * k[0].unsqueeze(2) * at::matmul(k[0].unsqueeze(1), S));
    for (int64_t l = 0; l < L; ++l) {
      const at::Tensor delta = at::gelu(p[l] * r);
      S = S + k[l].unsqueeze(2) * (beta[l].unsqueeze(1) * delta).unsqueeze(1);
      r = r - delta;
    }
    const at::Tensor o = at::matmul(q.unsqueeze(1), S).squeeze(1) / std::sqrt(static_cast<double>(V));
    const at::Tensor norm = o * at::rsqrt(o.square().mean(-1, true) + 1e-6) * own["norm_weight"];
    y.push_back(at::mv(own["out_weight"], norm.flatten() * at::silu(at::mv(own["gate_weight"], x[t]))));
  }
  return at::stack(y);
}

TEST(Prism, IsTheTokenLoopOfThePaper) {
  const at::NoGradGuard no_gradient;
  for (const int64_t steps : {1, 2, 3}) {
    const PrismConfig config{.heads = 2, .steps = steps};
    const auto mixer = make<Prism>(config, 12);
    const at::Tensor x = random_input({17, 12});
    EXPECT_LT(relative_error(run(*mixer, x.unsqueeze(0)).squeeze(0), token_loop(*mixer, config, x)), 1e-11);
  }
}

TEST(Prism, SharedKeysAreTiedKeysThatCoincide) {
  const at::NoGradGuard no_gradient;
  const auto shared = make<Prism>({.steps = 3, .solver_key = SolverKey::kSharedTied}, 8);
  const auto tied = make<Prism>({.steps = 3}, 8, 2);
  auto from = shared->named_parameters(), to = tied->named_parameters();
  for (const auto& own : from)
    if (own.key() != "in_weight") to[own.key()].copy_(own.value());
  const at::Tensor rows = from["in_weight"], key = rows.narrow(0, 8, 8);
  to["in_weight"].copy_(
      at::cat({rows.narrow(0, 0, 8), key, key, key, rows.narrow(0, 16, rows.size(0) - 16)}));
  const at::Tensor x = random_input({1, 13, 8});
  EXPECT_LT(relative_error(run(*shared, x), run(*tied, x)), 1e-12);
}

TEST(Prism, LowRankSolverIsTheFullOneWithMultipliedMatrices) {
  const at::NoGradGuard no_gradient;
  const auto low = make<Prism>({.steps = 2, .solver_rank = 3}, 8);
  const auto full = make<Prism>({.steps = 2}, 8, 2);
  auto from = low->named_parameters(), to = full->named_parameters();
  for (const auto& own : from)
    if (to.contains(own.key()) && own.key() != "in_weight") to[own.key()].copy_(own.value());
  const auto rows = from["in_weight"].split_with_sizes({8, 8, 3, 8, 6, 4, 2});
  const at::Tensor keys = at::matmul(from["later_keys_weight"][0], rows[2]);
  const at::Tensor gains = at::matmul(from["gains_weight"], rows[4].view({2, 3, 8})).flatten(0, 1);
  to["in_weight"].copy_(at::cat({rows[0], rows[1], keys, rows[3], gains, rows[5], rows[6]}));
  const at::Tensor x = random_input({1, 13, 8});
  EXPECT_LT(relative_error(run(*low, x), run(*full, x)), 1e-12);
}

TEST(Prism, WithoutDecayIsADecayThatForgetsNothing) {
  const at::NoGradGuard no_gradient;
  const auto without = make<Prism>({.decay = Decay::kNone}, 8);
  const auto with = make<Prism>({}, 8, 2);
  auto to = with->named_parameters();
  for (const auto& own : without->named_parameters())
    if (own.key() != "in_weight") to[own.key()].copy_(own.value());
  to["in_weight"].copy_(at::cat({without->named_parameters()["in_weight"], at::ones({2, 8}, at::kDouble)}));
  to["A_log"].fill_(-1000);  // g = -exp(-1000) softplus(.) = 0
  const at::Tensor x = random_input({1, 13, 8});
  EXPECT_LT(relative_error(run(*without, x), run(*with, x)), 1e-14);
}

TEST(Prism, SwitchesChangeWhatTheySay) {
  const auto names = [](const PrismConfig& config) {
    std::vector<std::string> all;
    for (const auto& own : Prism(config, 8).named_parameters()) all.push_back(own.key());
    return all;
  };
  EXPECT_THAT(names({}), ::testing::IsSupersetOf({"conv_weight", "conv_bias", "gain_bias", "A_log", "dt_bias",
                                                  "gate_weight", "norm_weight"}));
  EXPECT_THAT(names({.anchor = Anchor::kToken}), ::testing::Not(::testing::Contains("conv_weight")));
  EXPECT_THAT(names({.gain = Gain::kConstant}), ::testing::Not(::testing::Contains("gain_bias")));
  EXPECT_THAT(names({.decay = Decay::kSigmoid}), ::testing::Not(::testing::Contains("A_log")));
  EXPECT_THAT(names({.decay = Decay::kNone}),
              ::testing::AllOf(::testing::Not(::testing::Contains("A_log")),
                               ::testing::Not(::testing::Contains("decay_bias"))));
  EXPECT_THAT(names({.output_gate = false}), ::testing::Not(::testing::Contains("gate_weight")));
  EXPECT_THAT(names({.output_norm = false}), ::testing::Not(::testing::Contains("norm_weight")));
  EXPECT_THAT(names({.steps = 0, .conv = ConvPlace::kProjections}),
              ::testing::Not(::testing::Contains("conv_bias")));
}

/// q, L keys, v, L gains, L step sizes, one decay; conv, gain bias, decay, norm, gate, output.
TEST(Prism, ParameterCount) {
  const int64_t D = 64, H = 2, L = 2, W = 4;
  int64_t count = 0;
  for (const auto& parameter : Prism({}, D).parameters()) count += parameter.numel();
  EXPECT_EQ(count, D * (D + L * D + D + L * D + L * H + H) + D * W + D + L * D + 2 * H + D / H + 2 * D * D);
}

TEST(Prism, SigmoidDecayStartsWithHalfLivesFrom8To1024Tokens) {
  const auto mixer = make<Prism>({.heads = 4, .decay = Decay::kSigmoid}, 8);
  const at::Tensor half_life = -std::log(2.0) / at::log_sigmoid(mixer->named_parameters()["decay_bias"]);
  EXPECT_NEAR(half_life[0].item<double>(), 8, 1e-3);
  EXPECT_NEAR(half_life[3].item<double>(), 1024, 1);
  EXPECT_GT(half_life[2].item<double>(), half_life[1].item<double>());
}

TEST(Prism, MambaDecayStartsAsInGatedDeltaNet) {
  const auto mixer = make<Prism>({.heads = 64}, 64);
  const at::Tensor A = at::exp(mixer->named_parameters()["A_log"]);
  EXPECT_GT(A.min().item<double>(), 0);
  EXPECT_LT(A.max().item<double>(), 16);
  EXPECT_NEAR(A.mean().item<double>(), 8, 2);
  const at::Tensor dt = at::softplus(mixer->named_parameters()["dt_bias"]);
  EXPECT_GE(dt.min().item<double>(), 0.00099);
  EXPECT_LE(dt.max().item<double>(), 0.101);
}

TEST(Prism, SettingsThatDoNotFitAreUsageErrors) {
  EXPECT_THAT(usage_message({.value_width = 48}, 64), HasSubstr("H V = D needed when L >= 1"));
  EXPECT_THAT(usage_message({.heads = 3}, 64), HasSubstr("3 heads do not divide the model width 64"));
  EXPECT_THAT(usage_message({.heads = 4, .key_heads = 3}, 64),
              HasSubstr("key_heads 3 does not divide heads 4"));
  EXPECT_THAT(usage_message({.conv = ConvPlace::kProjections}, 64),
              HasSubstr("conv = projections needs steps = 0"));
  EXPECT_THAT(usage_message({.steps = 0, .anchor = Anchor::kToken, .conv = ConvPlace::kProjections}, 64),
              HasSubstr("no convolution"));
  EXPECT_EQ(usage_message({.steps = 0, .value_width = 48}, 64), "no error");
}

TEST(MixerRegistry, UnknownNamesSuggestTheNearest) {
  try {
    make_mixer_spec("prsm");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"prism\""));
  }
}

}  // namespace
}  // namespace prism::test::prism_mixer
