#include "prism/train/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace prism {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Window> cut(int64_t items, int64_t max_length) {
  std::vector<Window> windows;
  cut_history(3, items, max_length, windows);
  return windows;
}

TEST(Windows, AreCutFromTheEnd) {
  EXPECT_THAT(cut(11, 4), ElementsAre(Window{3, 0, 2}, Window{3, 2, 4}, Window{3, 6, 4}));
  EXPECT_THAT(cut(5, 4), ElementsAre(Window{3, 0, 4}));
  EXPECT_THAT(cut(2, 4), ElementsAre(Window{3, 0, 1}));
}

TEST(Windows, OneItemOrNoneGivesNoTarget) {
  EXPECT_THAT(cut(1, 4), IsEmpty());
  EXPECT_THAT(cut(0, 4), IsEmpty());
}

TEST(Windows, EveryItemButTheFirstIsATargetOnce) {
  for (int64_t items = 2; items < 40; ++items)
    for (int64_t length = 1; length < 12; ++length) {
      std::vector<int> targets(static_cast<size_t>(items));
      for (const Window& window : cut(items, length))
        for (int64_t i = 0; i < window.length; ++i) ++targets[static_cast<size_t>(window.begin + i + 1)];
      EXPECT_EQ(targets[0], 0);
      EXPECT_EQ(std::count(targets.begin(), targets.end(), 1), items - 1)
          << items << " items, T = " << length;
    }
}

TEST(Windows, ShufflingDependsOnSeedAndEpochAlone) {
  std::vector<Window> windows;
  for (int32_t user = 0; user < 50; ++user) windows.push_back({user, 0, 1});
  const auto first = shuffled_windows(windows, 1, 0);
  EXPECT_EQ(first, shuffled_windows(windows, 1, 0));
  EXPECT_NE(first, shuffled_windows(windows, 1, 1));
  EXPECT_NE(first, shuffled_windows(windows, 2, 0));
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), windows.begin()));
}

/// Users u (five items with times) and v (three items).
Interactions small_log() {
  Interactions log;
  for (const char* user : {"u", "v"}) log.users.add(user);
  for (const char* item : {"a", "b", "c", "d", "e"}) log.items.add(item);
  log.offsets = {0, 7, 10};
  log.item = {0, 1, 2, 3, 4, 0, 1, 4, 3, 2};
  log.time = {10, 30, 40, 90, 91, 99, 100, 5, 5, 6};
  log.time_decimals = 1;
  return log;
}

TEST(Batches, PackInputsTargetsAndGapsWithoutPadding) {
  const Interactions log = small_log();
  const Split split(log, {});
  const auto windows = cut_windows(split, 2, 3);  // user u trains on 0 1 2 3 4, user v on one item
  ASSERT_THAT(windows, ElementsAre(Window{0, 0, 1}, Window{0, 1, 3}));
  const TrainBatch batch = make_batch(log, split, windows, true, c10::Device(c10::kCPU));
  const auto values = [](const at::Tensor& t) {
    return std::vector<int64_t>(t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel());
  };
  EXPECT_THAT(values(batch.inputs.items), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(batch.targets), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values(batch.inputs.gaps), ElementsAre(0, 2, 1, 5)) << "tenths of a second in the log";
  EXPECT_THAT(batch.inputs.packing.offsets(), ElementsAre(0, 1, 4));
  EXPECT_FALSE(make_batch(log, split, windows, false, c10::Device(c10::kCPU)).inputs.gaps.defined());
}

}  // namespace
}  // namespace prism
