#include <gtest/gtest.h>

#include "prism/train/train_config.h"

namespace prism {
namespace {

TEST(Schedule, WarmsUpLinearlyToTheFullRate) {
  const TrainConfig config{.learning_rate = 0.2, .warmup = 4};
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 0, 100), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 3, 100), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 99, 100), 0.2);
}

TEST(Schedule, LinearAndCosineReachZeroAtTheEnd) {
  TrainConfig config{.learning_rate = 1.0, .warmup = 10, .schedule = Schedule::kLinear};
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 10, 110), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 60, 110), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 110, 110), 0.0);
  config.schedule = Schedule::kCosine;
  EXPECT_NEAR(learning_rate_at(config, 60, 110), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate_at(config, 110, 110), 0.0, 1e-12);
}

TEST(Schedule, WsdStaysAndThenFallsToItsFloor) {
  const RateSchedule schedule{
      .learning_rate = 2.0, .warmup = 10, .schedule = Schedule::kWsd, .floor = 0.1, .decay = 0.5};
  EXPECT_DOUBLE_EQ(scheduled_rate(schedule, 10, 110), 2.0);
  EXPECT_DOUBLE_EQ(scheduled_rate(schedule, 60, 110), 2.0);
  EXPECT_DOUBLE_EQ(scheduled_rate(schedule, 85, 110), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(scheduled_rate(schedule, 110, 110), 2.0 * 0.1);
}

TEST(Schedule, NoWarmUpAndAWarmUpLongerThanTraining) {
  EXPECT_DOUBLE_EQ(learning_rate_at({.learning_rate = 0.1, .warmup = 0}, 0, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at({.learning_rate = 0.1, .warmup = 100}, 9, 10), 0.01);
}

}  // namespace
}  // namespace prism
