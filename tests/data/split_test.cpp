#include "prism/data/split.h"

#include <gmock/gmock.h>

#include "data_test_util.h"

namespace prism {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Interactions read_rows(const std::string& rows) {
  const TempFile file("log.csv", "user_id,item_id,timestamp\n" + rows);
  return read(config_for(file.path()));
}

std::vector<std::string> names(const Interactions& log, std::span<const int32_t> items) {
  std::vector<std::string> out;
  for (const int32_t item : items) out.emplace_back(log.items.name(item));
  return out;
}

TEST(Split, LeaveOneOutTakesTheLastTwo) {
  const Interactions log = read_rows("u,a,1\nu,b,2\nu,c,3\nu,d,4\nshort,a,1\nshort,b,2\n");
  const Split split(log, DataConfig{});
  ASSERT_EQ(split.cases(Part::kTest).size(), 1U);
  const Case& valid = split.cases(Part::kValid).front();
  const Case& test = split.cases(Part::kTest).front();
  EXPECT_THAT(names(log, split.train(0)), ElementsAre("a", "b"));
  EXPECT_THAT(names(log, split.history(valid)), ElementsAre("a", "b"));
  EXPECT_EQ(log.items.name(valid.target), "c");
  EXPECT_THAT(names(log, split.history(test)), ElementsAre("a", "b", "c"));
  EXPECT_EQ(log.items.name(test.target), "d");
  EXPECT_THAT(names(log, split.train(1)), ElementsAre("a", "b"));
  EXPECT_EQ(split.train_size(), 4);
  EXPECT_EQ(split.users_not_evaluated(), 1);
}

TEST(Split, TimeCutsAllUsersAtTheSameMoments) {
  const Interactions log =
      read_rows("u,a,1\nu,b,12\nu,c,25\nlate,a,22\nlate,b,23\nearly,a,1\nearly,b,2\nboth,a,5\nboth,c,21\n");
  DataConfig config;
  config.split = SplitRule::kTime;
  config.valid_time = "10";
  config.test_time = "20";
  const Split split(log, config);
  ASSERT_EQ(split.cases(Part::kValid).size(), 1U);
  EXPECT_EQ(log.items.name(split.cases(Part::kValid)[0].target), "b");
  ASSERT_EQ(split.cases(Part::kTest).size(), 2U);
  EXPECT_THAT(names(log, split.history(split.cases(Part::kTest)[0])), ElementsAre("a", "b"));
  EXPECT_EQ(log.items.name(split.cases(Part::kTest)[1].target), "c");
  EXPECT_TRUE(split.train(log.users.find("late")).empty());
  EXPECT_EQ(split.users_not_evaluated(), 2);
  EXPECT_EQ(split.train_size(), 4);
}

TEST(Split, TimeByFractionsLeavesTheAskedShares) {
  std::string rows;
  for (int i = 0; i < 1000; ++i)
    rows += "u" + std::to_string(i % 10) + ",i" + std::to_string(i % 17) + "," + std::to_string(i) + "\n";
  const Interactions log = read_rows(rows);
  DataConfig config;
  config.split = SplitRule::kTime;
  EXPECT_EQ(Split(log, config).train_size(), 800);
  config.test_fraction = 0.2;
  EXPECT_EQ(Split(log, config).train_size(), 700);
}

TEST(Split, TimeNeedsTimesAndSensibleCuts) {
  DataConfig config;
  config.split = SplitRule::kTime;
  const TempFile file("log.csv", "user_id,item_id\nu,a\n");
  const Interactions timeless = read(config_for(file.path()));
  EXPECT_THAT(error_of([&] { Split(timeless, config); }), HasSubstr("needs timestamps"));
  const Interactions log = read_rows("u,a,1\nu,b,12\nu,c,25\n");
  config.valid_time = "30";
  config.test_time = "20";
  EXPECT_THAT(error_of([&] { Split(log, config); }), HasSubstr("give other cuts"));
  config.test_time = "40";
  EXPECT_THAT(error_of([&] { Split(log, config); }), HasSubstr("0 validation and 0 test users"));
  config.test_time = "soon";
  EXPECT_THAT(error_of([&] { Split(log, config); }), HasSubstr("--test-time \"soon\""));
}

}  // namespace
}  // namespace prism
