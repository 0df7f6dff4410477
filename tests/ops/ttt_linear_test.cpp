// The kernel of TTT-Linear against the composed operation: outputs, states, every gradient.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>
#include <vector>

#include "prism/ops/fast_weights.h"
#include "prism/ops/packing.h"

namespace prism::test {
namespace {

using at::Tensor;

struct TttCase {
  std::string name;
  int64_t rows, tokens, heads, width, mini_batch;
  std::vector<int64_t> lengths = {};  ///< packed when not empty
};

std::vector<TttCase> ttt_cases() {
  return {{"usual", 3, 40, 2, 32, 16},
          {"odd_width", 2, 37, 1, 5, 16},
          {"wide", 1, 20, 2, 66, 8},
          {"one_token", 2, 1, 3, 8, 16},
          {"batches_of_one", 2, 7, 2, 6, 1},
          {"batch_above_the_sequence", 2, 70, 2, 6, 65'536},
          {"batches_of_three", 1, 12, 2, 17, 3},
          {"packed", 1, 39, 2, 8, 4, {7, 0, 1, 16, 0, 15}}};
}

struct TttProblem {
  explicit TttProblem(const TttCase& c, at::ScalarType type) {
    at::manual_seed(5);
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto leaf = [](const Tensor& x, at::ScalarType t) {
      return x.to(at::kBFloat16).to(t).requires_grad_();  // every type starts from the same numbers
    };
    const int64_t N = c.lengths.empty() ? c.rows : int64_t(c.lengths.size());
    const std::vector<int64_t> shape{c.rows, c.tokens, c.heads, c.width};
    const auto normal = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
    for (int i = 0; i < 3; ++i) leaves.push_back(leaf(normal(shape), type));
    leaves.push_back(leaf(at::rand({c.rows, c.tokens, c.heads}, at::kDouble) / double(c.width), wide));
    leaves.push_back(leaf(at::rand({c.mini_batch}, at::kDouble), wide));
    leaves.push_back(leaf(1 + normal({c.heads, c.width}) / 4, wide));
    leaves.push_back(leaf(normal({c.heads, c.width}) / 4, wide));
    leaves.push_back(leaf(normal({N, c.heads, c.width + 1, c.width}) / 4, wide));
    up.push_back(normal(shape).to(type));
    for (int i = 0; i < 3; ++i) up.push_back(normal(leaves[7].sizes()).to(wide));
    if (!c.lengths.empty()) cu_seqlens = Packing::packed(c.lengths).cu_seqlens();
    mini_batch = c.mini_batch;
  }

  FastWeightArgs args(Implementation implementation) const {
    FastWeightArgs a{.q = leaves[0], .k = leaves[1], .v = leaves[2], .memory = {}, .rule = {}, .state = {}};
    a.rule = {.gradient_weight = leaves[3], .place_step = leaves[4], .accumulate = false};
    a.memory = {.bias = true,
                .exact_gelu = false,
                .norm_weight = leaves[5],
                .norm_bias = leaves[6],
                .loss = InnerLoss::kHalfSquare};
    a.state.weights = {leaves[7]};
    a.mini_batch = mini_batch;
    a.cu_seqlens = cu_seqlens;
    a.implementation = implementation;
    return a;
  }

  /// o, the states, and the gradients of all leaves.
  std::vector<Tensor> run(Implementation implementation) const {
    const FastWeightResult result = fast_weights(args(implementation));
    std::vector<Tensor> all{result.o, result.state.weights[0], result.state.start[0],
                            result.state.momentum[0]};
    std::vector<Tensor> outputs, upstream;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].requires_grad()) {  // the composed S of closed mini-batches is a constant 0
        outputs.push_back(all[i]);
        upstream.push_back(up[i]);
      }
    const auto gradients = torch::autograd::grad(outputs, leaves, upstream);
    all.insert(all.end(), gradients.begin(), gradients.end());
    for (Tensor& x : all) x = x.detach();
    return all;
  }

  std::vector<Tensor> leaves, up;
  std::optional<Tensor> cu_seqlens;
  int64_t mini_batch;
};

/// Relative L2 errors of o and the states, of the gradients, and of those of the two step sizes (tensors 7
/// and 8), which are sums of many products as a gate's are.
struct Limits {
  double values, gradients, steps;
  double of(size_t i) const { return i < 4 ? values : i == 7 || i == 8 ? steps : gradients; }
};

void expect_near(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                 const Limits& limits) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor y = expected[i].to(at::kDouble);
    const double norm = std::max(y.norm().item<double>(), 1e-6 * std::sqrt(double(y.numel())));
    EXPECT_LE((found[i].to(at::kDouble) - y).norm().item<double>() / norm, limits.of(i)) << "tensor " << i;
  }
}

class TttLinearKernel : public ::testing::TestWithParam<TttCase> {};

TEST_P(TttLinearKernel, IsTheComposedOperation) {
  const TttProblem exact(GetParam(), at::kDouble);
  const auto expected = exact.run(Implementation::kComposed);
  expect_near(exact.run(Implementation::kFused), expected, {1e-12, 1e-11, 1e-11});
  expect_near(TttProblem(GetParam(), at::kFloat).run(Implementation::kFused), expected, {1e-5, 1e-5, 1e-5});
  expect_near(TttProblem(GetParam(), at::kBFloat16).run(Implementation::kFused), expected,
              {5e-3, 8e-3, 2e-2});
}

TEST_P(TttLinearKernel, BitsDependOnNoThreadCount) {
  const TttProblem problem(GetParam(), at::kFloat);
  const int threads = at::get_num_threads();
  const auto first = problem.run(Implementation::kFused);
  at::set_num_threads(threads == 1 ? 2 : 1);
  const auto again = problem.run(Implementation::kFused);
  at::set_num_threads(threads);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << "tensor " << i;
}

TEST_P(TttLinearKernel, NothingIsLeftFromAnEarlierCall) {
  // Wide, so that the other leaves NaN all over a thread's memory.
  const TttProblem problem(GetParam(), at::kFloat), spoilt({"", 2, 70, 2, 66, 16}, at::kFloat);
  {
    const c10::NoGradGuard no_gradient;
    for (const Tensor& leaf : spoilt.leaves) leaf.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  const auto first = problem.run(Implementation::kFused);
  spoilt.run(Implementation::kFused);
  const auto again = problem.run(Implementation::kFused);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << "tensor " << i;
}

TEST_P(TttLinearKernel, ReadsStridedTensors) {
  const c10::NoGradGuard no_gradient;
  const TttProblem problem(GetParam(), at::kDouble);
  FastWeightArgs args = problem.args(Implementation::kFused);
  const Tensor expected = fast_weights(args).o;
  const Tensor joined = at::cat({args.q, args.k, args.v}, 2);
  const int64_t heads = args.q.size(2);
  args.q = joined.narrow(2, 0, heads), args.k = joined.narrow(2, heads, heads);
  args.v = args.v.transpose(1, 3).contiguous().transpose(1, 3);
  EXPECT_TRUE(at::equal(fast_weights(args).o, expected));
}

INSTANTIATE_TEST_SUITE_P(All, TttLinearKernel, ::testing::ValuesIn(ttt_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace prism::test
