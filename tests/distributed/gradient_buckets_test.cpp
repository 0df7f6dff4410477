#include "distributed/gradient_buckets.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "support/join_ranks.h"
#include "support/rank_processes.h"

namespace prism {
namespace {

/// Parameter i has i + 1 elements; gradients are small whole numbers, so sums are exact.
std::vector<at::Tensor> parameters(int64_t count) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(at::ones({i + 1}).requires_grad_());
  return all;
}

at::Tensor weighted(const std::vector<at::Tensor>& parameters, double factor) {
  at::Tensor sum = at::zeros({});
  for (const at::Tensor& parameter : parameters)
    sum = sum + (parameter * at::arange(parameter.numel(), at::kFloat)).sum() * factor;
  return sum;
}

/// Two micro-batches a step, three steps; with a parameter to each bucket, all in one, and in between.
TEST(GradientBuckets, DISABLED_Sums) {
  const auto ranks = join_ranks();
  for (const int64_t bytes : {int64_t{1}, int64_t{40}, GradientBuckets::kBucketBytes}) {
    const auto all = parameters(6);
    GradientBuckets buckets(all, *ranks, bytes);
    EXPECT_EQ(buckets.count(), bytes == 1 ? 6 : bytes == 40 ? 2 : 1);
    for (int step = 0; step < 3; ++step) {
      weighted(all, 1).backward();
      buckets.arm();
      EXPECT_EQ(buckets.sent(), 0);
      weighted(all, static_cast<double>(ranks->rank() + step)).backward();
      EXPECT_EQ(buckets.sent(), buckets.count());  // they left while backward was at work
      buckets.finish();
      double factor = 0;
      for (int64_t rank = 0; rank < ranks->size(); ++rank) factor += static_cast<double>(1 + rank + step);
      for (const at::Tensor& parameter : all) {
        EXPECT_TRUE(at::equal(parameter.grad(), at::arange(parameter.numel(), at::kFloat) * factor));
        parameter.mutable_grad().reset();
      }
    }
  }
}
TEST(GradientBuckets, AddUpOverRanks) {
  expect_ranks_pass(2, "GradientBuckets.DISABLED_Sums");
  expect_ranks_pass(3, "GradientBuckets.DISABLED_Sums");
}

/// Parameter 0 is used by nobody, 1 by rank 0, 2 by rank 1, 3 by both; and then rank 1 has nothing at all.
TEST(GradientBuckets, DISABLED_Unused) {
  const auto ranks = join_ranks();
  const auto all = parameters(4);
  GradientBuckets buckets(all, *ranks, 1);
  buckets.arm();
  weighted({all[ranks->leads() ? 1 : 2], all[3]}, 1).backward();
  buckets.finish();
  EXPECT_FALSE(all[0].grad().defined());
  for (const size_t i : {1, 2, 3})
    EXPECT_TRUE(at::equal(all[i].grad(), at::arange(all[i].numel(), at::kFloat) * (i == 3 ? 2.0 : 1.0))) << i;
  for (const at::Tensor& parameter : all) parameter.mutable_grad().reset();
  buckets.arm();
  if (ranks->leads()) weighted(all, 3).backward();
  buckets.finish();
  for (const at::Tensor& parameter : all)
    EXPECT_TRUE(at::equal(parameter.grad(), at::arange(parameter.numel(), at::kFloat) * 3.0));
}
TEST(GradientBuckets, WhatNobodyUsesStaysUndefined) {
  expect_ranks_pass(2, "GradientBuckets.DISABLED_Unused");
}

/// Gone buckets leave no hooks behind.
TEST(GradientBuckets, DISABLED_Gone) {
  const auto ranks = join_ranks();
  const auto all = parameters(2);
  { GradientBuckets(all, *ranks).arm(); }
  weighted(all, 1).backward();
  EXPECT_TRUE(at::equal(all[1].grad(), at::arange(2, at::kFloat)));
}
TEST(GradientBuckets, LeaveNoHooksBehind) { expect_ranks_pass(2, "GradientBuckets.DISABLED_Gone"); }

}  // namespace
}  // namespace prism
