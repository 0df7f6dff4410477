// Every test of Ranks starts processes that run the disabled test of the same name.
#include "prism/distributed/ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/error_of.h"
#include "support/join_ranks.h"
#include "support/rank_processes.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

TEST(Ranks, DISABLED_Collectives) {
  const auto ranks = join_ranks();
  const double own = static_cast<double>(ranks->rank()), size = static_cast<double>(ranks->size());
  EXPECT_EQ(ranks->transport(), "gloo");
  const at::Tensor summed = at::full({3, 5}, own + 1, at::kFloat);
  ranks->sum(summed);
  EXPECT_TRUE(at::equal(summed, at::full({3, 5}, size * (size + 1) / 2, at::kFloat)));
  const at::Tensor most = at::arange(4, at::kLong) * (ranks->rank() % 2 ? 1 : -1);
  ranks->largest(most);
  EXPECT_TRUE(at::equal(most, at::arange(4, at::kLong)));
  EXPECT_EQ(ranks->largest(ranks->rank() == 1 ? 15 : 0), 15);
  const at::Tensor told = at::full({2}, own + 7, at::kDouble);
  ranks->broadcast(told);
  EXPECT_TRUE(at::equal(told, at::full({2}, 7.0, at::kDouble)));
  const at::Tensor all = ranks->gather(at::full({2, 3}, own, at::kFloat).t());
  EXPECT_EQ(all.sizes(), (at::IntArrayRef{ranks->size(), 3, 2}));
  for (int64_t i = 0; i < ranks->size(); ++i) EXPECT_EQ(all[i].mean().item<double>(), static_cast<double>(i));
  const at::Tensor nothing = ranks->gather(at::ones({0, 4}));
  EXPECT_EQ(nothing.numel(), 0);
}
TEST(Ranks, SumBroadcastAndGather) {
  expect_ranks_pass(2, "Ranks.DISABLED_Collectives");
  expect_ranks_pass(3, "Ranks.DISABLED_Collectives");
}

TEST(Ranks, DISABLED_Differ) {
  const auto ranks = join_ranks();
  ranks->require_same("the colour", "green");
  EXPECT_THAT(error_of([&] { ranks->require_same("the colour", ranks->leads() ? "green" : "blue"); }),
              HasSubstr("the colour is not the same on ranks 0 and 1"));
}
TEST(Ranks, SayWhatDiffers) { expect_ranks_pass(2, "Ranks.DISABLED_Differ"); }

/// Rank 1 ends without a word while rank 0 waits for it.
TEST(Ranks, DISABLED_Lost) {
  auto ranks = join_ranks();
  if (!ranks->leads()) return;
  const std::string message = error_of([&] { ranks->sum(at::ones({1000})); });
  EXPECT_THAT(message, HasSubstr("rank 0 of 2: another rank has ended or does not answer ("));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}
TEST(Ranks, AnEndedRankIsNoticed) { expect_ranks_pass(2, "Ranks.DISABLED_Lost"); }

TEST(Ranks, ARankThatNeverComesEndsTheWaiting) {
  const RankEnvironment place{.rank = 0, .size = 2, .address = "127.0.0.1", .port = free_port()};
  EXPECT_THAT(error_of([&] { Ranks::join(place, c10::Device(c10::kCPU), std::chrono::seconds(1)); }),
              HasSubstr("rank 0 of 2: did not meet the other ranks at 127.0.0.1"));
}

}  // namespace
}  // namespace prism
