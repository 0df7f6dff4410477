// The preconditioner's scan against a loop over tokens in fp64; the step size of an exact flow.
#include "prism/ops/precondition.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_matrix_exp.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "prism/core/error.h"
#include "prism/ops/step_size.h"

namespace prism {
namespace {

using at::Tensor;

double precondition_error(const Tensor& a, const Tensor& b) {
  if (b.numel() == 0) return a.sizes() == b.sizes() ? 0 : 1;
  const double floor = 1e-6 * std::sqrt(static_cast<double>(b.numel()));
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>() /
         std::max(b.to(at::kDouble).norm().item<double>(), floor);
}

/// Inputs that bf16 holds; gates from 0 to -20, some betas and keys zero.
struct Problem {
  explicit Problem(const std::vector<int64_t>& lengths, int64_t H = 2, int64_t K = 5)
      : packing(Packing::packed(lengths)) {
    at::manual_seed(3);
    const int64_t tokens = packing.offsets().back(), N = static_cast<int64_t>(lengths.size());
    const auto narrow = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
    k = narrow(at::randn({1, tokens, H, K}) * 0.4);
    beta = narrow(at::rand({1, tokens, H}));
    g = narrow(-at::rand({1, tokens, H}));
    if (tokens > 2) {
      beta.select(1, 1).zero_();
      k.select(1, 1).zero_();
      g.select(1, 2).fill_(-20);
      g.select(1, 0).zero_();
    }
    log_scale = narrow(at::randn({H}));
    initial = narrow(at::rand({N, H, K}));
    up = narrow(at::randn({1, tokens, H, K}));
    up_final = narrow(at::randn({N, H, K}));
  }
  std::vector<Tensor> inputs() const { return {k, beta, g, log_scale, initial}; }

  Packing packing;
  Tensor k, beta, g, log_scale, initial, up, up_final;
};

constexpr double kSquash = 1.5, kEps = 1e-6;

PreconditionResult token_loop(const std::vector<Tensor>& in, const Packing& packing) {
  std::vector<Tensor> rows, finals;
  const auto& offsets = packing.offsets();
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    Tensor a = in[4][static_cast<int64_t>(n)];
    for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      const Tensor k = in[0][0][t];
      a = in[2][0][t].exp().unsqueeze(-1) * a + in[1][0][t].unsqueeze(-1) * k.square();
      const Tensor r = at::log(a + kEps) - in[3].unsqueeze(-1);
      rows.push_back(at::pow(kSquash, -r / (1 + r.abs())) * k);
    }
    finals.push_back(a);
  }
  return {rows.empty() ? at::zeros_like(in[0]) : at::stack(rows).unsqueeze(0), at::stack(finals)};
}

template <class Op>
std::vector<Tensor> results(const Problem& p, const Op& op, at::ScalarType type) {
  const auto gates = type == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Tensor> leaves;
  for (const Tensor& x : p.inputs())
    leaves.push_back(x.to(leaves.empty() ? type : gates).detach().requires_grad_());
  const PreconditionResult r = op(leaves);
  EXPECT_EQ(r.write_key.scalar_type(), type);
  ((r.write_key * p.up.to(type)).to(gates).sum() + (r.final_a * p.up_final.to(gates)).sum()).backward();
  std::vector<Tensor> all{r.write_key.detach(), r.final_a.detach()};
  for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

std::vector<Tensor> own_results(const Problem& p, at::ScalarType type) {
  return results(
      p,
      [&](const std::vector<Tensor>& in) {
        return precondition(in[0], in[1], in[2], in[3], p.packing, in[4], kSquash, kEps);
      },
      type);
}

TEST(Precondition, OutputsAndGradientsAreTheTokenLoops) {
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{1}, {7, 0, 1, 19}, {0, 33}}) {
    for (const int64_t width : {1, 5, 32}) {
      const Problem p(lengths, 3, width);
      const auto truth = results(
          p, [&](const auto& in) { return token_loop(in, p.packing); }, at::kDouble);
      for (const auto& [type, tolerance] :
           {std::pair{at::kDouble, 1e-11}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.01}}) {
        const auto found = own_results(p, type);
        for (size_t i = 0; i < truth.size(); ++i)
          EXPECT_LT(precondition_error(found[i], truth[i]), tolerance)
              << c10::toString(type) << " tensor " << i << " width " << width;
      }
    }
  }
}

TEST(Precondition, RowsPackedRowsAndASplitAgree) {
  const c10::NoGradGuard no_gradient;
  const Problem p({12, 12});
  const auto rows = [&](const Tensor& x) { return x.view({2, 12, x.size(2), -1}).squeeze(-1); };
  const auto run = [&](int64_t from, int64_t count, const Tensor& initial) {
    const auto part = [&](const Tensor& x) { return rows(x).narrow(1, from, count); };
    return precondition(part(p.k), part(p.beta), part(p.g), p.log_scale, Packing::rows(), initial);
  };
  const auto packed = precondition(p.k, p.beta, p.g, p.log_scale, p.packing, p.initial);
  const auto whole = run(0, 12, p.initial), head = run(0, 5, p.initial), tail = run(5, 7, head.final_a);
  EXPECT_TRUE(at::equal(whole.write_key, rows(packed.write_key)));
  EXPECT_TRUE(at::equal(at::cat({head.write_key, tail.write_key}, 1), whole.write_key));
  EXPECT_TRUE(at::equal(tail.final_a, packed.final_a));
}

TEST(Precondition, RepeatsAndThreadCountsGiveTheSameBits) {
  const Problem p({300, 1, 170, 64}, 2, 32);
  const int threads = at::get_num_threads();
  const auto first = own_results(p, at::kFloat);
  at::set_num_threads(1);
  const auto again = own_results(p, at::kFloat);
  at::set_num_threads(threads);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << "tensor " << i;
}

TEST(Precondition, ASquashOfOneLeavesKeysAlone) {
  const Problem p({9});
  EXPECT_TRUE(at::equal(precondition(p.k, p.beta, p.g, p.log_scale, p.packing, {}, 1).write_key, p.k));
}

TEST(Precondition, EmptyCallsAndNamedErrors) {
  const Problem empty({0, 0});
  const auto result =
      precondition(empty.k, empty.beta, empty.g, empty.log_scale, empty.packing, empty.initial);
  EXPECT_EQ(result.write_key.numel(), 0);
  EXPECT_TRUE(at::equal(result.final_a, empty.initial));
  const Problem p({4});
  try {
    precondition(p.k, p.beta.narrow(2, 0, 1), p.g, p.log_scale, p.packing);
    FAIL() << "no error";
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(), ::testing::HasSubstr("beta has 1 heads"));
  }
}

/// The flow dS/dt = -k k^T S held for the time b is the matrix exponential.
TEST(ExactStepSize, IsTheMatrixExponential) {
  at::manual_seed(1);
  for (const double length : {0.0, 1e-6, 1e-2, 0.1, 1.0, 4.0}) {
    Tensor k = at::randn({1, 6}, at::kDouble);
    k = k / k.norm() * length;
    const Tensor b = at::full({1}, 0.7, at::kDouble);
    const Tensor outer = at::matmul(k.t(), k);
    const Tensor expected = at::linalg_matrix_exp(-b * outer);
    EXPECT_LT(precondition_error(at::eye(6, at::kDouble) - exact_step_size(b, k) * outer, expected), 1e-14)
        << length;
  }
  EXPECT_EQ(exact_step_size(at::full({1}, 0.7, at::kDouble), at::zeros({1, 6}, at::kDouble)).item<double>(),
            0.7);
}

TEST(ExactStepSize, GradientsAreFiniteDifferences) {
  at::manual_seed(2);
  const Tensor scale = at::tensor({0.0, 1e-4, 1e-2, 0.3, 1.0, 30.0}, at::kDouble).view({6, 1, 1});
  const Tensor k = (at::randn({6, 2, 3}, at::kDouble) * scale).requires_grad_();
  const Tensor b = at::rand({6, 4}, at::kDouble).requires_grad_();
  const Tensor up = at::randn({6, 4}, at::kDouble);
  (exact_step_size(b, k) * up).sum().backward();
  const c10::NoGradGuard no_gradient;
  for (const Tensor& input : {k, b}) {
    const Tensor direction = at::randn(input.sizes(), at::kDouble);
    const auto value = [&](double step) {
      const Tensor moved = input + step * direction;
      const Tensor result = input.is_same(k) ? exact_step_size(b, moved) : exact_step_size(moved, k);
      return (result * up).sum().item<double>();
    };
    constexpr double kStep = 1e-4;
    const double expected =
        (8 * (value(kStep) - value(-kStep)) - (value(2 * kStep) - value(-2 * kStep))) / (12 * kStep);
    EXPECT_NEAR((input.grad() * direction).sum().item<double>(), expected,
                1e-8 * std::max(1.0, std::abs(expected)));
  }
}

}  // namespace
}  // namespace prism
