// What the paper proves about the layer, checked on numbers (docs/prism.md).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>

#include "prism/ops/prism_chunk.h"
#include "prism/ops/prism_refine.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

at::Tensor unit(const at::Tensor& k) { return k / k.norm(2, -1, true); }

/// Appendix F: the write of a token, sum_l k_l w_l^T, has rank L for independent keys and writes.
TEST(Theory, TheWriteHasRankL) {
  at::manual_seed(1);
  for (int64_t steps = 1; steps <= 4; ++steps) {
    const at::Tensor k = unit(at::randn({1, 1, steps, 1, 16}, at::kDouble));
    const at::Tensor v = at::randn({1, 1, 1, 12}, at::kDouble), u = at::randn({1, 1, 1, 12}, at::kDouble);
    const at::Tensor p = at::randn({1, 1, steps, 1, 12}, at::kDouble) + 1;
    const at::Tensor beta = at::rand({1, 1, steps, 1}, at::kDouble);
    PrismChunkArgs args{.q = at::zeros({1, 1, 1, 16}, at::kDouble),
                        .k = k,
                        .w = prism_refine(v, u, p, beta).w,
                        .b = beta.select(2, 0),
                        .g = at::zeros({1, 1, 1}, at::kDouble)};
    args.return_final_state = true;
    const at::Tensor S = prism_chunk(args).final_state[0][0];
    EXPECT_EQ(at::linalg_matrix_rank(S, 1e-9).item<int64_t>(), steps);
  }
}

/// Lemma D.1: a (I - b k k^T) has its eigenvalues in [0, 1] for a, b in [0, 1] and |k| <= 1.
TEST(Theory, TheTransitionNeverGrowsTheState) {
  at::manual_seed(2);
  for (int trial = 0; trial < 50; ++trial) {
    const at::Tensor k = unit(at::randn({8}, at::kDouble)) * at::rand({1}, at::kDouble);
    const at::Tensor a = at::rand({1}, at::kDouble), b = at::rand({1}, at::kDouble);
    // The state after one token from S = I, without writes, is the transition itself.
    PrismChunkArgs args{.q = at::zeros({1, 1, 1, 8}, at::kDouble),
                        .k = k.view({1, 1, 1, 1, 8}),
                        .w = at::zeros({1, 1, 1, 1, 8}, at::kDouble),
                        .b = b.view({1, 1, 1}),
                        .g = a.log().view({1, 1, 1})};
    args.initial_state = at::eye(8, at::kDouble).view({1, 1, 8, 8});
    args.return_final_state = true;
    const at::Tensor M = prism_chunk(args).final_state[0][0];
    const at::Tensor values = at::linalg_eigvalsh((M + M.t()) / 2);
    EXPECT_LT((M - M.t()).abs().max().item<double>(), 1e-14);
    EXPECT_GE(values.min().item<double>(), -1e-12);
    EXPECT_LE(values.max().item<double>(), 1 + 1e-12);
  }
}

/// Appendix G: |d - d'| <= 1.13 max|p| |r - r'| for one step with p fixed (GELU's Lipschitz constant
/// is 1.129).
TEST(Theory, OneRefinementStepIsLipschitz) {
  at::manual_seed(3);
  const int64_t n = 4096;
  const at::Tensor v = 3 * at::randn({n, 1, 16}, at::kDouble);
  const at::Tensor other = v + at::randn({n, 1, 1}, at::kDouble).exp() * at::randn({n, 1, 16}, at::kDouble);
  const at::Tensor p = 2 * at::randn({n, 1, 1, 16}, at::kDouble), beta = at::ones({n, 1, 1}, at::kDouble);
  const at::Tensor u = at::zeros_like(v);
  const auto delta = [&](const at::Tensor& r) {
    return prism_refine(r, u, p, beta, Nonlinearity::kGelu, Residual::kSubtract, true).delta.squeeze(1);
  };
  const at::Tensor moved = (delta(v) - delta(other)).norm(2, -1), by = (v - other).norm(2, -1);
  const at::Tensor ratio = moved / (by * p.squeeze(1).abs().amax(-1));
  EXPECT_LE(ratio.max().item<double>(), 1.13);
  // The constant is nearly reached, at r = sqrt 2 where GELU's slope is largest.
  const at::Tensor steep = at::full({1, 1, 16}, std::sqrt(2.0), at::kDouble);
  const at::Tensor one = at::ones({1, 1, 1, 16}, at::kDouble), gate = at::ones({1, 1, 1}, at::kDouble);
  const at::Tensor zero = at::zeros_like(steep);
  const at::Tensor slope =
      (prism_refine(steep + 1e-6, zero, one, gate).w - prism_refine(steep, zero, one, gate).w) / 1e-6;
  EXPECT_GT(slope.max().item<double>(), 1.128);
}

/// Appendix E: where a token's context is a stable sum c_t = sum_i gamma^i x_{t-i} of inputs |x| <= 1, gamma
/// < 1, a window of W + 1 tokens misses at most the tail, gamma^(W+1) / (1 - gamma). The anchor adds SiLU,
/// whose slope stays below 1.1.
TEST(Theory, TheAnchorsErrorFallsGeometricallyWithItsWidth) {
  at::manual_seed(4);
  const int64_t tokens = 400;
  for (const double gamma : {0.5, 0.9}) {
    const at::Tensor x = at::rand({1, tokens, 1}, at::kDouble) * 2 - 1;
    at::Tensor context = at::zeros({tokens}, at::kDouble);
    for (int64_t t = 0; t < tokens; ++t)
      context[t] = x[0][t][0] + (t ? gamma * context[t - 1] : at::zeros({}, at::kDouble));
    for (const int64_t W : {0, 1, 3, 7, 15}) {
      const at::Tensor taps = at::pow(gamma, at::arange(W, -1, -1, at::kDouble)).unsqueeze(0);
      const at::Tensor anchor = short_conv(x, taps, {}, Packing::rows()).view({tokens});
      const double worst = (anchor - at::silu(context)).abs().max().item<double>();
      EXPECT_LE(worst, 1.1 * std::pow(gamma, W + 1) / (1 - gamma));
      EXPECT_GT(worst, 0.1 * std::pow(gamma, W + 1)) << "the bound's rate is the true one";
    }
  }
}

/// The worst input, x = 1 throughout, reaches the bound in the limit.
TEST(Theory, TheAnchorsBoundIsReached) {
  const double gamma = 0.8;
  const at::Tensor taps = at::pow(gamma, at::arange(399, -1, -1, at::kDouble)).unsqueeze(0);
  const at::Tensor x = at::ones({1, 400, 1}, at::kDouble);
  const auto sum_of = [&](int64_t width) {  // the sum inside SiLU, from its value at a large argument
    return short_conv(x, taps.narrow(1, 400 - width, width), at::full({1}, 50.0, at::kDouble),
                      Packing::rows())
        .select(1, 399)
        .item<double>();
  };
  EXPECT_NEAR(sum_of(400) - sum_of(4), std::pow(gamma, 4) / (1 - gamma), 1e-9);
}

}  // namespace
}  // namespace prism
