#include "prism/evaluate/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/random.h"

namespace prism {
namespace {

constexpr double kTolerance = 5.1e-7;  // the files give six digits

std::map<std::string, double> by_name(const std::vector<Metric>& metrics) {
  std::map<std::string, double> values;
  for (const Metric& metric : metrics) values[metric.name] = metric.value;
  return values;
}

std::vector<double> scores_of(const nlohmann::json& json) {
  std::vector<double> scores;
  for (const auto& score : json) scores.push_back(score.is_null() ? std::nan("") : score.get<double>());
  return scores;
}

class MetricCases : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path file = std::filesystem::path(PRISM_SHARED_DIR) / "data/rec/metric_cases.json";
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "skipped: " << file << " is absent";
    std::ifstream stream(file);
    all_ = nlohmann::json::parse(stream);
  }
  nlohmann::json all_;
};

TEST(RankMetrics, ACutOffGivenTwiceCountsOnce) {
  RankMetrics metrics({5, 1, 5});
  EXPECT_THAT(metrics.ks(), ::testing::ElementsAre(5, 1));
  EXPECT_EQ(metrics.means().size(), 2 * 2 + 3U);
}

TEST_F(MetricCases, EachCase) {
  for (const auto& c : all_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const std::vector<double> scores = scores_of(c["scores"]);
    const auto seen = c["seen"].get<std::vector<int32_t>>();
    const auto counts = count_ranks<double>(scores, c["target"], seen);
    EXPECT_EQ(counts.rank(), c["rank"]);
    EXPECT_EQ(counts.candidates, c["candidates"]);
    std::vector<int64_t> ks;
    for (const auto& [k, value] : c["HR"].items()) ks.push_back(std::stoll(k));
    RankMetrics metrics(ks);
    metrics.add(counts);
    auto values = by_name(metrics.means());
    for (const auto& [k, value] : c["HR"].items()) EXPECT_EQ(values["HR@" + k], value);
    for (const auto& [k, value] : c["NDCG"].items()) EXPECT_NEAR(values["NDCG@" + k], value, kTolerance);
    EXPECT_NEAR(values["MRR"], c["MRR"], kTolerance);
    if (c["AUC"].is_null()) {
      EXPECT_TRUE(std::isnan(values["AUC"]));
    } else {
      EXPECT_NEAR(values["AUC"], c["AUC"], kTolerance);
    }
  }
}

TEST_F(MetricCases, Means) {
  const nlohmann::json& want = all_["all_cases"];
  RankMetrics metrics({1, 2, 3, 10});
  for (const auto& c : all_["cases"])
    metrics.add(
        count_ranks<double>(scores_of(c["scores"]), c["target"], c["seen"].get<std::vector<int32_t>>()));
  auto values = by_name(metrics.means());
  EXPECT_EQ(metrics.users(), want["cases"]);
  for (const char* k : {"1", "2", "3", "10"}) {
    EXPECT_NEAR(values[std::string("HR@") + k], want["HR"][k], kTolerance);
    EXPECT_NEAR(values[std::string("NDCG@") + k], want["NDCG"][k], kTolerance);
  }
  EXPECT_NEAR(values["MRR"], want["MRR"], kTolerance);
  EXPECT_NEAR(values["mean_rank"], want["mean_rank"], kTolerance);
  EXPECT_NEAR(values["AUC"], want["AUC"], kTolerance);
}

TEST(CountRanks, CountsNanAndRefusesAForeignTarget) {
  const std::vector<float> scores{1, NAN, 2, NAN};
  EXPECT_EQ(count_ranks<float>(scores, 0, {}).nan, 2);
  EXPECT_EQ(count_ranks<float>(scores, 3, std::vector<int32_t>{1, 1}).nan, 1);
  EXPECT_THROW(count_ranks<float>(scores, 4, {}), Error);
  EXPECT_THROW(count_ranks<float>(scores, -1, {}), Error);
}

TEST(RankMetrics, RandomScoresHaveAnAucOfOneHalf) {
  RandomStream stream(7, "scores");
  RankMetrics metrics({10});
  std::vector<float> scores(200);
  for (int user = 0; user < 4000; ++user) {
    for (float& score : scores) score = static_cast<float>(stream.uniform());
    metrics.add(count_ranks<float>(scores, static_cast<int64_t>(stream.below(200)), {}));
  }
  // standard error of the mean: sqrt(1/12/4000) = .0046
  EXPECT_NEAR(by_name(metrics.means())["AUC"], 0.5, 0.015);
  EXPECT_NEAR(by_name(metrics.means())["HR@10"], 0.05, 0.012);
}

kernels::RankCounts at_rank(int64_t rank) {
  return {.greater = rank - 1, .equal = 0, .equal_before = 0, .candidates = 100, .nan = 0};
}

TEST(RankMetrics, SeenTargetsCanBeMisses) {
  RankMetrics metrics({10});
  metrics.add(at_rank(1), true);
  metrics.add(at_rank(2));
  EXPECT_EQ(metrics.seen_targets(), 1);
  EXPECT_DOUBLE_EQ(by_name(metrics.means())["HR@10"], 1);
  auto missed = by_name(metrics.means_with_seen_targets_missed());
  EXPECT_DOUBLE_EQ(missed["HR@10"], 0.5);
  EXPECT_DOUBLE_EQ(missed["MRR"], 0.25);
  EXPECT_FALSE(missed.contains("AUC"));
}

TEST(RankMetrics, IntervalsCoverTheMeanRepeatAndHaveTheRightWidth) {
  RankMetrics metrics({10});
  for (int user = 0; user < 1000; ++user) metrics.add(at_rank(user % 5 == 0 ? 1 : 50));
  const auto first = metrics.with_intervals(1), again = metrics.with_intervals(1),
             other = metrics.with_intervals(2);
  const Metric& hr = first.front();
  EXPECT_DOUBLE_EQ(hr.value, 0.2);
  const double error = std::sqrt(0.2 * 0.8 / 1000);
  EXPECT_NEAR(hr.low, 0.2 - 1.96 * error, 0.2 * error);
  EXPECT_NEAR(hr.high, 0.2 + 1.96 * error, 0.2 * error);
  EXPECT_EQ(hr.low, again.front().low);
  EXPECT_NE(first.back().low, other.back().low);
}

TEST(RankMetrics, IntervalsOfManyUsersHaveTheRightWidth) {
  RandomStream stream(3, "hits");
  RankMetrics metrics({10});
  for (int user = 0; user < 70'000; ++user) metrics.add(at_rank(stream.below(10) == 0 ? 1 : 50));
  const Metric hr = metrics.with_intervals(1).front();
  const double width = 2 * 1.96 * std::sqrt(hr.value * (1 - hr.value) / 70'000);
  EXPECT_NEAR(hr.high - hr.low, width, 0.15 * width);
}

TEST(RankMetrics, NoUsersGiveNoNumbers) {
  const RankMetrics metrics({10});
  for (const Metric& metric : metrics.with_intervals(1)) EXPECT_TRUE(std::isnan(metric.value)) << metric.name;
}

}  // namespace
}  // namespace prism
