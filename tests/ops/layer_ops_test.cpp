// The operations around the recurrence: norms, short convolution, attention, rotary positions, dropout.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "prism/core/error.h"
#include "prism/ops/attention.h"
#include "prism/ops/dropout.h"
#include "prism/ops/norm.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  at::manual_seed(seed);
  return at::randn(shape, dtype);
}

/// Relative to b, or to a hundredth a value where b is smaller: attention over one token has no gradient in q
/// and k, and its rounding is not to be measured against 0.
double error(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return a.numel() == 0 ? 0 : 1;
  const double floor = 1e-2 * std::sqrt(static_cast<double>(b.numel()));
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>() /
         std::max(b.to(at::kDouble).norm().item<double>(), floor);
}

using Op = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Values and gradients of `op` in fp64, fp32 and bf16 against `expected` in fp64, from inputs that bf16
/// holds.
void expect_same(const Op& op, const Op& expected, std::vector<at::Tensor> inputs) {
  for (auto& input : inputs) input = input.to(at::kBFloat16).to(at::kDouble);
  const auto run = [&](const Op& function, at::ScalarType dtype) {
    std::vector<at::Tensor> leaves, results;
    for (const auto& input : inputs) leaves.push_back(input.to(dtype).detach().requires_grad_());
    const at::Tensor y = function(leaves);
    EXPECT_EQ(y.scalar_type(), dtype);
    y.backward(normal(y.sizes(), 77).to(at::kBFloat16).to(dtype));
    results.push_back(y.detach());
    for (const auto& leaf : leaves) results.push_back(leaf.grad());
    return results;
  };
  const auto truth = run(expected, at::kDouble);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-11}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.01}}) {
    const auto found = run(op, dtype), again = run(op, dtype);
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_EQ(found[i].sizes(), truth[i].sizes());
      EXPECT_LT(error(found[i], truth[i]), tolerance) << c10::toString(dtype) << " tensor " << i;
      EXPECT_TRUE(at::equal(found[i], again[i])) << "a repeat differs, tensor " << i;
    }
  }
}

TEST(Norm, L2) {
  for (const int64_t width : {2, 7, 32, 64})
    expect_same([](const auto& in) { return l2_norm(in[0]); },
                [](const auto& in) { return in[0] * at::rsqrt(in[0].square().sum(-1, true) + 1e-6); },
                {normal({3, 5, 2, width}, 1)});
}

TEST(Norm, L2OfStridedRows) {
  expect_same(
      [](const auto& in) {
        return l2_norm(in[0].narrow(-1, 8, 16).unflatten(-1, {2, 8}));
      },
      [](const auto& in) {
        const at::Tensor x = in[0].narrow(-1, 8, 16).unflatten(-1, {2, 8});
        return x * at::rsqrt(x.square().sum(-1, true) + 1e-6);
      },
      {normal({3, 5, 40}, 1)});
}

TEST(Norm, Rms) {
  for (const int64_t width : {1, 7, 64, 100})
    expect_same(
        [](const auto& in) { return rms_norm(in[0], in[1]); },
        [](const auto& in) { return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-6) * in[1]; },
        {normal({3, 50, width}, 1), normal({width}, 2)});
}

TEST(Norm, GatedRms) {
  for (const int64_t width : {5, 32})
    expect_same([](const auto& in) { return gated_rms_norm(in[0], in[1], in[2]); },
                [](const auto& in) {
                  return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-6) * in[2] * at::silu(in[1]);
                },
                {normal({3, 40, 2, width}, 1), normal({3, 40, 2, width}, 3), normal({width}, 2)});
}

at::Tensor naive_conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor padded = at::constant_pad_nd(x.transpose(1, 2), {weight.size(1) - 1, 0});
  return at::silu(at::conv1d(padded, weight.unsqueeze(1), bias, at::IntArrayRef{1}, at::IntArrayRef{0},
                             at::IntArrayRef{1}, weight.size(0)))
      .transpose(1, 2);
}

TEST(ShortConv, RowsArePaddedConvolutions) {
  for (const int64_t width : {1, 2, 4, 7})
    expect_same([](const auto& in) { return short_conv(in[0], in[1], in[2], Packing::rows()); },
                [](const auto& in) { return naive_conv(in[0], in[1], in[2]); },
                {normal({2, 9, 11}, 1), normal({11, width}, 2), normal({11}, 3)});
}

TEST(ShortConv, PackedSequencesAreSeparate) {
  const std::vector<int64_t> lengths{3, 0, 1, 6};
  const Packing packing = Packing::packed(lengths);
  expect_same([&](const auto& in) { return short_conv(in[0], in[1], {}, packing); },
              [&](const auto& in) {
                std::vector<at::Tensor> parts;
                for (size_t n = 0; n < lengths.size(); ++n)
                  if (lengths[n])
                    parts.push_back(naive_conv(in[0].narrow(1, packing.offsets()[n], lengths[n]), in[1], {}));
                return at::cat(parts, 1);
              },
              {normal({1, 10, 5}, 1), normal({5, 4}, 2)});
}

TEST(ShortConv, ContinuesFromAHistory) {
  const at::Tensor x = normal({2, 9, 5}, 1), weight = normal({5, 4}, 2), bias = normal({5}, 3);
  const at::Tensor y = short_conv(x, weight, bias, Packing::rows());
  for (const int64_t cut : {0, 1, 2, 5, 9}) {
    const at::Tensor history = short_conv_history(x.narrow(1, 0, cut), 4, Packing::rows());
    const at::Tensor rest = short_conv(x.narrow(1, cut, 9 - cut), weight, bias, Packing::rows(), history);
    EXPECT_LT(error(rest, y.narrow(1, cut, 9 - cut)), 1e-12);
    at::Tensor moving = history.clone();
    for (int64_t t = cut; t < 9; ++t)
      EXPECT_LT(error(short_conv_step(x.select(1, t), weight, bias, moving), y.select(1, t)), 1e-12);
    EXPECT_TRUE(
        at::equal(moving, short_conv_history(x.narrow(1, cut, 9 - cut), 4, Packing::rows(), history)));
  }
}

TEST(ShortConv, NamesWhatDoesNotFit) {
  EXPECT_THROW(short_conv(normal({1, 3, 5}, 1), normal({4, 4}, 1), {}, Packing::rows()), Error);
}

at::Tensor naive_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const int64_t group = q.size(2) / k.size(2), T = q.size(1);
  const auto first = [&](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor scores =
      at::matmul(first(q), first(k.repeat_interleave(group, 2)).transpose(2, 3)) * scale;
  const at::Tensor hidden = at::ones({T, T}, at::kBool).triu(1);
  const at::Tensor a = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
  return first(at::matmul(a, first(v.repeat_interleave(group, 2))));
}

TEST(Attention, CausalRowsAndGroupedHeads) {
  for (const int64_t T : {1, 2, 33})
    expect_same([](const auto& in) { return causal_attention(in[0], in[1], in[2], 0.3, Packing::rows()); },
                [](const auto& in) { return naive_attention(in[0], in[1], in[2], 0.3); },
                {normal({2, T, 4, 8}, 1), normal({2, T, 2, 8}, 2), normal({2, T, 2, 8}, 3)});
}

TEST(Attention, PackedSequencesAreSeparate) {
  const std::vector<int64_t> lengths{3, 0, 1, 16, 40, 16};
  const Packing packing = Packing::packed(lengths);
  expect_same([&](const auto& in) { return causal_attention(in[0], in[1], in[2], 0.3, packing); },
              [&](const auto& in) {
                std::vector<at::Tensor> parts;
                for (size_t n = 0; n < lengths.size(); ++n)
                  parts.push_back(naive_attention(in[0].narrow(1, packing.offsets()[n], lengths[n]),
                                                  in[1].narrow(1, packing.offsets()[n], lengths[n]),
                                                  in[2].narrow(1, packing.offsets()[n], lengths[n]), 0.3));
                return at::cat(parts, 1);
              },
              {normal({1, 76, 2, 8}, 1), normal({1, 76, 2, 8}, 2), normal({1, 76, 2, 8}, 3)});
}

TEST(Attention, OfManyPackedSequencesStaysSmall) {
  const Packing packing = Packing::packed(std::vector<int64_t>(20000, 3));
  const at::Tensor q = normal({1, 60000, 1, 4}, 1, at::kFloat);
  EXPECT_EQ(causal_attention(q, q, q, 0.5, packing).size(1), 60000);  // 60000^2 scores would need 14 GB
}

TEST(Rope, TurnsHalfSplitPairsByThePosition) {
  const at::Tensor x = normal({1, 3, 1, 4}, 1), positions = at::tensor({0, 1, 7}, at::kLong).unsqueeze(0);
  const at::Tensor y = rope(x, positions, 100.0);
  EXPECT_TRUE(at::equal(y.select(1, 0), x.select(1, 0)));
  const std::vector<double> places{0, 1, 7};
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 2; ++c) {
      const double angle = places[t] * std::pow(100.0, -2.0 * c / 4);
      const double a = x[0][t][0][c].item<double>(), b = x[0][t][0][c + 2].item<double>();
      EXPECT_NEAR(y[0][t][0][c].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-12);
      EXPECT_NEAR(y[0][t][0][c + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-12);
    }
  EXPECT_THROW(rope(normal({1, 3, 1, 5}, 1), positions), Error);
}

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  const at::Tensor x = at::ones({100000});
  for (const double rate : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropout(x, {rate, 12345});
    const double kept = y.ne(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 1 - rate, 5 * std::sqrt(rate * (1 - rate) / 1e5));
    EXPECT_NEAR(y.max().item<double>(), 1 / (1 - rate), 1e-5);
  }
  EXPECT_TRUE(dropout(x, {0, 1}).is_same(x));
}

TEST(Dropout, MasksOfDifferentSeedsPlacesAndNeighboursAreIndependent) {
  const at::Tensor x = at::ones({1 << 18});
  const auto kept = [&](const Dropout& drop) { return dropout(x, drop).ne(0).to(at::kDouble) - 0.5; };
  const at::Tensor a = kept({0.5, 1}), b = kept({0.5, 2}), c = kept(Dropout{0.5, 1}.at(1));
  const double bound = 5 * 0.25 / std::sqrt(static_cast<double>(1 << 18));
  EXPECT_LT(std::abs((a * b).mean().item<double>()), bound);
  EXPECT_LT(std::abs((a * c).mean().item<double>()), bound);
  for (const int64_t lag : {1, 2, 64, 128, 4096})
    EXPECT_LT(
        std::abs((a.narrow(0, 0, (1 << 18) - lag) * a.narrow(0, lag, (1 << 18) - lag)).mean().item<double>()),
        bound)
        << "lag " << lag;
}

TEST(Dropout, TheMaskDependsOnNothingButTheSeed) {
  const at::Tensor x = normal({70001}, 1, at::kFloat), residual = normal({70001}, 2, at::kFloat);
  const Dropout drop{0.3, 99};
  const at::Tensor y = dropout_add(residual, x, drop);
  EXPECT_TRUE(at::equal(y, dropout_add(residual, x, drop)));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(y, dropout_add(residual, x, drop)));
  at::set_num_threads(threads);
  EXPECT_LT(error(dropout_add(residual.to(at::kDouble), x.to(at::kDouble), drop), y), 1e-6);
}

/// Rows of a step fall the same however they are cut into batches.
TEST(Dropout, TheMaskFollowsTheRow) {
  const at::Tensor x = normal({1, 101, 7}, 1, at::kFloat);
  for (const int64_t row :
       {int64_t{0}, (int64_t{1} << 32) / 7 - 50}) {  // the index passes 2^32 in the second
    const at::Tensor whole = dropout(x, {0.3, 99, row});
    const at::Tensor parts = at::cat(
        {dropout(x.narrow(1, 0, 40), {0.3, 99, row}), dropout(x.narrow(1, 40, 61), {0.3, 99, row + 40})}, 1);
    EXPECT_TRUE(at::equal(whole, parts));
    EXPECT_LT(error(dropout(x.to(at::kDouble), {0.3, 99, row}), whole), 1e-6);
  }
  EXPECT_FALSE(at::equal(dropout(x, {0.3, 99, 0}).ne(0), dropout(x, {0.3, 99, 1}).ne(0)));
}

TEST(Dropout, StagedSeedsAreThoseOfThePlaces) {
  Dropout drop{0.3, 99, 7};
  drop.staged = drop.seeds(4, 2);
  EXPECT_EQ(drop.staged.sizes(), (std::vector<int64_t>{4, 3}));
  for (uint64_t i = 0; i < 4; ++i) {
    const Dropout place = drop.at(i);
    EXPECT_EQ(place.seed, (Dropout{0.3, 99}.at(i).seed));
    EXPECT_EQ(*place.staged.const_data_ptr<int64_t>(), static_cast<int64_t>(place.seed));
    for (uint64_t j = 0; j < 2; ++j)
      EXPECT_EQ(place.at(j).staged.item<int64_t>(), static_cast<int64_t>(place.at(j).seed));
  }
  EXPECT_THROW(dropout(at::ones({3}), drop), Error) << "the CPU reads seeds on the host";
}

TEST(Dropout, BackwardUsesTheSameMask) {
  const at::Tensor x = normal({50, 7}, 1, at::kFloat).requires_grad_(),
                   residual = normal({50, 7}, 2, at::kFloat).requires_grad_();
  const Dropout drop{0.4, 5};
  const at::Tensor up = normal({50, 7}, 3, at::kFloat);
  dropout_add(residual, x, drop).backward(up);
  EXPECT_TRUE(at::equal(residual.grad(), up));
  EXPECT_TRUE(at::equal(x.grad(), dropout(up, drop)));
}

}  // namespace
}  // namespace prism
