#include "prism/train/optimiser.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace prism {
namespace {

at::Tensor parameter(double value, at::IntArrayRef shape = {2, 2}) {
  return at::full(shape, value).set_requires_grad(true);
}

void set_grad(at::Tensor& tensor, double value) { tensor.mutable_grad() = at::full(tensor.sizes(), value); }

TEST(AdamW, FollowsItsEquationsForThreeSteps) {
  at::Tensor p = parameter(0.5);
  AdamW optimiser({{"weight", p}}, {.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-8, .weight_decay = 0.1});
  double x = 0.5, m = 0, v = 0;
  for (int t = 1; t <= 3; ++t) {
    const double gradient = 0.3 * t - 0.5, rate = 0.01 * t;
    set_grad(p, gradient);
    optimiser.step(rate);
    m = 0.9 * m + 0.1 * gradient;
    v = 0.98 * v + 0.02 * gradient * gradient;
    x -= rate * 0.1 * x;
    x -= rate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.98, t))) + 1e-8);
    EXPECT_NEAR(p.detach().view(-1)[3].item<double>(), x, 1e-6) << "step " << t;
  }
}

TEST(AdamW, DecaysMatricesButNeitherVectorsNorEmbeddings) {
  at::Tensor matrix = parameter(1), vector = parameter(1, {4}), table = parameter(1);
  AdamW optimiser({{"w", matrix}, {"norm", vector}, {"item_embedding.weight", table}}, {.weight_decay = 0.5});
  for (at::Tensor* p : {&matrix, &vector, &table}) set_grad(*p, 0);
  optimiser.step(0.1);
  EXPECT_NEAR(matrix.detach().view(-1)[0].item<double>(), 0.95, 1e-6);
  EXPECT_EQ(vector.detach()[0].item<double>(), 1.0);
  EXPECT_EQ(table.detach().view(-1)[0].item<double>(), 1.0);
}

TEST(AdamW, LeavesParametersWithoutGradientAlone) {
  at::Tensor used = parameter(1), idle = parameter(1);
  AdamW optimiser({{"used", used}, {"idle", idle}}, {.weight_decay = 0.5});
  set_grad(used, 1);
  optimiser.step(0.1);
  EXPECT_EQ(idle.detach().view(-1)[0].item<double>(), 1.0);
  optimiser.zero_grad();
  EXPECT_FALSE(used.grad().defined());
}

TEST(AdamW, ASkippedStepChangesNothingButTheCount) {
  at::Tensor p = parameter(1);
  AdamW optimiser({{"w", p}}, {.weight_decay = 0.5});
  set_grad(p, std::nan(""));
  optimiser.step(0.1, at::full({}, true));
  EXPECT_EQ(p.detach().view(-1)[0].item<double>(), 1.0);
  EXPECT_EQ(optimiser.state()[0].second.abs().sum().item<double>(), 0.0);
  EXPECT_EQ(optimiser.steps(), 1);
  set_grad(p, 1);
  optimiser.step(0.1, at::full({}, false));
  EXPECT_LT(p.detach().view(-1)[0].item<double>(), 1.0);
}

TEST(ClipGradients, ScalesToTheNormAndLeavesSmallOnes) {
  at::Tensor a = parameter(0, {9}), b = parameter(0, {16}), idle = parameter(0);
  set_grad(a, 1);
  set_grad(b, 1);
  EXPECT_NEAR(clip_gradients({{"a", a}, {"b", b}, {"idle", idle}}, 2.5).item<double>(), 5.0, 1e-6);
  EXPECT_NEAR(a.grad()[0].item<double>(), 0.5, 1e-6);
  EXPECT_NEAR(b.grad()[0].item<double>(), 0.5, 1e-6);
  clip_gradients({{"a", a}, {"b", b}}, 100);
  EXPECT_NEAR(a.grad()[0].item<double>(), 0.5, 1e-6) << "already below the limit";
  clip_gradients({{"a", a}, {"b", b}}, 0);
  EXPECT_NEAR(a.grad()[0].item<double>(), 0.5, 1e-6) << "0 switches clipping off";
}

}  // namespace
}  // namespace prism
