// Counts and filters of the shipped files against rec/truth.json.
#include <gmock/gmock.h>

#include <algorithm>

#include "data_test_util.h"
#include "prism/data/split.h"

namespace prism {
namespace {

class Truth : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(shared_rec())) GTEST_SKIP() << "skipped: " << shared_rec() << " is absent";
    truth_ = read_json(shared_rec() / "truth.json")["files"][GetParam()];
    config_ = config_for((shared_rec() / GetParam()).string());
  }
  nlohmann::json truth_;
  DataConfig config_;
};

TEST_P(Truth, Counts) {
  ReadReport report;
  const Interactions log = read_interactions(config_, report);
  const nlohmann::json& counts = truth_["counts"];
  EXPECT_EQ(log.users.size(), counts["users"]);
  EXPECT_EQ(log.items.size(), counts["items"]);
  EXPECT_EQ(log.size(), counts["interactions"]);
  EXPECT_EQ(report.tied_pairs, counts.value("adjacent_equal_timestamps", 0));
}

TEST_P(Truth, LeaveOneOutSizes) {
  const Interactions log = read(config_);
  const Split split(log, config_);
  EXPECT_EQ(split.cases(Part::kTest).size(), truth_["leave_one_out"]["evaluated_users"]);
  EXPECT_EQ(split.train_size(), truth_["leave_one_out"]["training_interactions"]);
}

TEST_P(Truth, RepeatedPaperFilter) {
  config_.min_user = 40;
  config_.min_item = 5;
  const nlohmann::json& want = truth_["paper_filter_40_5"]["iterative_until_stable"];
  ReadReport report;
  if (want["users"] == 0) {
    EXPECT_THAT(read_error(config_), ::testing::HasSubstr("nothing is left"));
    return;
  }
  read_interactions(config_, report);
  EXPECT_EQ(report.before.interactions, truth_["counts"]["interactions"]);
  EXPECT_EQ(report.after.users, want["users"]);
  EXPECT_EQ(report.after.items, want["items"]);
  EXPECT_EQ(report.after.interactions, want["interactions"]);
  EXPECT_EQ(report.filter_rounds, want["rounds_that_removed_rows"]);
}

INSTANTIATE_TEST_SUITE_P(Files, Truth,
                         ::testing::Values("ml-100k.inter", "ml-1m.txt.gz", "s3rec-beauty.txt",
                                           "s3rec-sports_and_outdoors.txt", "s3rec-yelp.txt"));

TEST(Ties, ByItemIdChangesTheKnownNumberOfTestItems) {
  const std::filesystem::path file = shared_rec() / "ml-100k.inter";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "skipped: " << file << " is absent";
  DataConfig config = config_for(file.string());
  const Interactions by_file = read(config);
  config.ties = TieRule::kItem;
  const Interactions by_item = read(config);
  int64_t changed = 0;
  for (int64_t user = 0; user < by_file.users.size(); ++user)
    changed += by_file.history(user).back() != by_item.history(user).back();
  EXPECT_EQ(changed, 281);
}

}  // namespace
}  // namespace prism
