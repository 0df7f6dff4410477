// Popularity and Markov against rec/truth.json and against dense score rows.
#include "prism/evaluate/baselines.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "prism/core/random.h"
#include "prism/data/reader.h"

namespace prism {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(PRISM_SHARED_DIR) / "data/rec";
constexpr double kTruthTolerance = 5.1e-7;  // truth.json gives six digits
// Where seen targets count as misses it scales a mean over the other users that is rounded to six digits
// already: 5,184 hits of 30,431 users stand there as .170352, not .170353.
constexpr double kTwiceRounded = 2 * kTruthTolerance;

// Compares every figure that `want` has; returns how many.
int64_t expect_figures(const std::vector<Metric>& metrics, const nlohmann::json& want,
                       double tolerance = kTruthTolerance) {
  int64_t compared = 0;
  for (const Metric& metric : metrics) {
    if (!want.contains(metric.name)) continue;
    EXPECT_NEAR(metric.value, want[metric.name], tolerance) << metric.name;
    ++compared;
  }
  return compared;
}

void expect_baseline(const RankMetrics& metrics, const nlohmann::json& truth, bool filter_seen) {
  const char* key = filter_seen ? "seen_filter_on" : "seen_filter_off";
  nlohmann::json want = truth[key]["ties_first_appearance_first"];
  want["AUC"] = truth[key]["AUC"];
  EXPECT_EQ(expect_figures(metrics.means(), want), 11);
  if (!filter_seen || !truth.contains("seen_filter_on_and_seen_target_is_a_miss")) return;
  const nlohmann::json& missed =
      truth["seen_filter_on_and_seen_target_is_a_miss"]["ties_first_appearance_first"];
  EXPECT_EQ(expect_figures(metrics.means_with_seen_targets_missed(), missed, kTwiceRounded), 9);
}

void expect_truth(const DataConfig& config, const nlohmann::json& truth) {
  ReadReport report;
  const Interactions log = read_interactions(config, report);
  const Split split(log, config);
  for (const bool filter_seen : {false, true}) {
    const BaselineResult result = evaluate_baselines(log, split, {10, 20, 200, 500}, filter_seen);
    for (const Part part : {Part::kValid, Part::kTest}) {
      const char* name = part == Part::kValid ? "valid" : "test";
      SCOPED_TRACE(std::string(name) + (filter_seen ? ", filter on" : ", filter off"));
      expect_baseline(result.of(part).popularity, truth["popularity"][name], filter_seen);
      expect_baseline(result.of(part).markov, truth["markov"][name], filter_seen);
      EXPECT_EQ(result.of(part).markov.seen_targets(), truth["targets_already_seen"][name]);
    }
  }
}

class BaselineTruth : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "skipped: " << kFolder << " is absent";
    std::ifstream stream(kFolder / "truth.json");
    truth_ = nlohmann::json::parse(stream)["files"][GetParam()];
    config_.file = (kFolder / GetParam()).string();
  }
  nlohmann::json truth_;
  DataConfig config_;
};

TEST_P(BaselineTruth, WholeFile) { expect_truth(config_, truth_["leave_one_out"]); }

INSTANTIATE_TEST_SUITE_P(Files, BaselineTruth,
                         ::testing::Values("ml-100k.inter", "ml-1m.txt.gz", "s3rec-beauty.txt",
                                           "s3rec-sports_and_outdoors.txt", "s3rec-yelp.txt"));

class FilteredBaselineTruth : public BaselineTruth {};

TEST_P(FilteredBaselineTruth, AfterThePaperFilter) {
  config_.min_user = 40;
  config_.min_item = 5;
  expect_truth(config_, truth_["leave_one_out_after_iterative_paper_filter"]);
}

INSTANTIATE_TEST_SUITE_P(Files, FilteredBaselineTruth, ::testing::Values("ml-100k.inter", "ml-1m.txt.gz"));

// A small log with many ties, repeats and never-trained items.
Interactions random_log(uint64_t seed) {
  RandomStream stream(seed, "log");
  Interactions log;
  for (int item = 0; item < 12; ++item) log.items.add("i" + std::to_string(item));
  for (int user = 0; user < 40; ++user) {
    log.users.add("u" + std::to_string(user));
    for (uint64_t i = 0, length = 1 + stream.below(9); i < length; ++i)
      log.item.push_back(static_cast<int32_t>(stream.below(stream.below(12) + 1)));
    log.offsets.push_back(log.size());
  }
  return log;
}

// The definition, with a dense row of scores.
RankMetrics dense_markov(const Interactions& log, const Split& split, bool filter_seen) {
  const auto items = static_cast<size_t>(log.items.size());
  std::vector<double> popularity(items), follows(items * items);
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto train = split.train(user);
    for (size_t i = 0; i < train.size(); ++i) {
      ++popularity[static_cast<size_t>(train[i])];
      if (i > 0) ++follows[static_cast<size_t>(train[i - 1]) * items + static_cast<size_t>(train[i])];
    }
  }
  RankMetrics metrics({1, 5});
  for (const Case& c : split.cases(Part::kTest)) {
    const auto history = split.history(c);
    std::vector<double> scores(items);
    for (size_t i = 0; i < items; ++i)
      scores[i] = 1000 * follows[static_cast<size_t>(history.back()) * items + i] + popularity[i];
    metrics.add(count_ranks<double>(scores, c.target, filter_seen ? history : std::span<const int32_t>{}));
  }
  return metrics;
}

TEST(Baselines, SparseRanksAreTheDenseOnes) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Interactions log = random_log(seed);
    const Split split(log, DataConfig{});
    for (const bool filter_seen : {false, true}) {
      const auto sparse = evaluate_baselines(log, split, {1, 5}, filter_seen).test.markov.means();
      const auto dense = dense_markov(log, split, filter_seen).means();
      for (size_t m = 0; m < dense.size(); ++m)
        ASSERT_DOUBLE_EQ(sparse[m].value, dense[m].value) << dense[m].name << " of seed " << seed;
    }
  }
}

}  // namespace
}  // namespace prism
