// prism data and prism baselines, end to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_prism.h"

namespace prism {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DataCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(shared_file("truth.json")))
      GTEST_SKIP() << "skipped: " << shared_file("") << " is absent";
    std::ifstream stream(shared_file("truth.json"));
    truth_ = nlohmann::json::parse(stream)["files"];
  }
  nlohmann::json truth_;
};

TEST_F(DataCommands, DataCountsAsJson) {
  for (const char* name : {"ml-100k.inter", "s3rec-yelp.txt"}) {
    const Outcome outcome = run_prism("data --json " + shared_file(name));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const nlohmann::json counts = outcome.json()["counts"];
    for (const char* key : {"users", "items", "interactions", "length_min", "length_median", "length_max",
                            "repeated_user_item_rows", "immediate_repeats"})
      EXPECT_EQ(counts[key], truth_[name]["counts"][key]) << name << ' ' << key;
  }
}

TEST_F(DataCommands, DataSaysTimesTiesAndTitles) {
  const nlohmann::json json = run_prism("data --json " + shared_file("ml-100k.inter")).json();
  const nlohmann::json& counts = truth_["ml-100k.inter"]["counts"];
  EXPECT_EQ(json["time"]["min"], "874724710");
  for (const char* key : {"users_with_a_tie", "users_tie_between_last_two"})
    EXPECT_EQ(json["time"][key], counts[key]) << key;
  EXPECT_EQ(json["titles"]["known"], 1682);
  EXPECT_EQ(json["split"]["training_interactions"], 98114);
  EXPECT_EQ(json["read"]["separator"], "tab");
}

TEST_F(DataCommands, DataAsText) {
  const Outcome outcome = run_prism("data --min-user 40 --min_item 5 " + shared_file("ml-100k.inter"));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("read 100,000 rows: tab-separated, UTF-8, columns user_id item_id timestamp"),
            HasSubstr("-> 643 users, 1,330 items, 91,053 interactions (2 rounds)"), HasSubstr("643 test")));
}

TEST_F(DataCommands, BaselinesAsJson) {
  const nlohmann::json json =
      run_prism("baselines --json --no-filter-seen " + shared_file("s3rec-beauty.txt")).json();
  const nlohmann::json& truth = truth_["s3rec-beauty.txt"]["leave_one_out"];
  for (const char* part : {"test", "valid"}) {
    for (const char* name : {"popularity", "markov"}) {
      const nlohmann::json& want = truth[name][part]["seen_filter_off"]["ties_first_appearance_first"];
      for (const auto& [metric, value] : want.items())
        EXPECT_NEAR(json[part][name][metric], value, 5.1e-7) << part << ' ' << name << ' ' << metric;
      EXPECT_LT(json["intervals"][part][name]["HR@10"][0], json[part][name]["HR@10"]);
      EXPECT_GT(json["intervals"][part][name]["HR@10"][1], json[part][name]["HR@10"]);
    }
  }
  EXPECT_EQ(json["protocol"]["filter_seen"], false);
  EXPECT_EQ(json["counts"]["users"], 22363);
}

TEST_F(DataCommands, BaselinesSayWhatASeenTargetDoes) {
  const nlohmann::json json = run_prism("baselines --json --ks 10 " + shared_file("s3rec-yelp.txt")).json();
  EXPECT_EQ(json["seen_targets"]["test"], 2027);
  EXPECT_NEAR(json["seen_target_is_a_miss"]["test"]["markov"]["HR@10"], 0.020275, 1.1e-6);
}

TEST_F(DataCommands, ErrorsAreOneLineAndAStatus) {
  const Outcome bad = run_prism("data " + shared_file("broken/12_truncated.csv.gz"));
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(bad.out, "");
  EXPECT_THAT(bad.err, AllOf(HasSubstr("prism: error: "), HasSubstr("12_truncated.csv.gz"),
                             HasSubstr("ends too early")));
  EXPECT_EQ(run_prism("data --min-user 0 x.csv").status, 2);
  EXPECT_EQ(run_prism("data").status, 2);
  const Outcome typo = run_prism("data --min-users 3 x.csv");
  EXPECT_EQ(typo.status, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean \"--min-user\"?"));
}

}  // namespace
}  // namespace prism
