// Full-ranking evaluation of a recommender: figures, exactness, independence of batches and threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "prism/core/random.h"
#include "prism/evaluate/evaluate_model.h"
#include "prism/evaluate/user_vectors.h"

namespace prism {
namespace {

/// A random log with times and repeats.
Interactions random_log(int64_t users, int64_t items, int64_t longest) {
  Interactions log;
  RandomStream random(3, "log");
  for (int64_t i = 0; i < items; ++i) log.items.add("i" + std::to_string(i));
  for (int64_t u = 0; u < users; ++u) {
    log.users.add("u" + std::to_string(u));
    const auto length = 3 + random.below(static_cast<uint64_t>(longest) - 2);
    int64_t time = 1000;
    for (uint64_t n = 0; n < length; ++n) {
      log.item.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(items))));
      log.time.push_back(time += static_cast<int64_t>(random.below(100000)));
    }
    log.offsets.push_back(log.size());
  }
  return log;
}

std::shared_ptr<Recommender> random_model(const std::string& mixer, int64_t items, bool gaps = false) {
  ModelSpec spec(mixer);
  spec.model.mixer = mixer;
  spec.model.width = 32;
  spec.model.max_length = 20;
  spec.model.time_gaps = gaps;
  return std::make_shared<Recommender>(spec, items, 11);
}

bool same(const std::vector<kernels::RankCounts>& a, const std::vector<kernels::RankCounts>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

TEST(EvaluateModel, RandomModelHasAnAucOfOneHalf) {
  const Interactions log = random_log(800, 500, 12);
  const Split split(log, DataConfig{});
  const auto model = random_model("prism", 500);
  const std::vector<Metric> metrics = evaluate_model(*model, log, split, Part::kTest, {10}).means();
  const auto auc =
      std::find_if(metrics.begin(), metrics.end(), [](const Metric& m) { return m.name == "AUC"; });
  ASSERT_NE(auc, metrics.end());
  EXPECT_NEAR(auc->value, 0.5, 0.04);  // standard error .29 / sqrt(800) = .01
}

TEST(EvaluateModel, RanksAgreeWithAllScoresOfEachUser) {
  const Interactions log = random_log(60, 150, 40);
  const Split split(log, DataConfig{});
  const auto model = random_model("prism", 150, true);
  for (const bool filter_seen : {true, false}) {
    const auto counts = rank_cases(*model, log, split, Part::kValid, {.filter_seen = filter_seen});
    const kernels::ItemPanels panels = item_panels(*model);
    ASSERT_EQ(counts.size(), split.cases(Part::kValid).size());
    for (size_t c = 0; c < counts.size(); ++c) {
      const Case& one = split.cases(Part::kValid)[c];
      const auto items = split.history(one);
      const History history{
          .items = items, .times = std::span(log.time).subspan(static_cast<size_t>(one.begin), items.size())};
      const at::Tensor vector = user_vectors(*model, {&history, 1});
      std::vector<float> scores(150);
      std::vector<int32_t> ids(150);
      for (int32_t i = 0; i < 150; ++i) ids[static_cast<size_t>(i)] = i;
      score_pairs(panels, vector.const_data_ptr<float>(), std::vector<int64_t>(150, 0).data(), ids.data(),
                  150, scores.data());
      const auto expected =
          count_ranks<float>(scores, one.target, filter_seen ? items : std::span<const int32_t>());
      EXPECT_EQ(std::memcmp(&counts[c], &expected, sizeof expected), 0) << "case " << c;
    }
  }
}

TEST(EvaluateModel, BatchesSlicesAndThreadsChangeNoBit) {
  const Interactions log = random_log(300, 200, 30);
  const Split split(log, DataConfig{});
  const int threads = at::get_num_threads();
  for (const char* mixer : {"prism", "sasrec_block"}) {
    const auto model = random_model(mixer, 200);
    std::vector<History> histories;
    for (int64_t u = 0; u < 300; ++u) histories.push_back({.items = log.history(u), .times = log.times(u)});
    at::set_num_threads(1);
    const auto expected = rank_cases(*model, log, split, Part::kTest);
    const at::Tensor vectors = user_vectors(*model, histories);
    for (const int n : {1, 2, 3})
      for (const int64_t batch_tokens : {1, 37, 1000, 100000}) {
        at::set_num_threads(n);
        EXPECT_TRUE(user_vectors(*model, histories, 1, batch_tokens).equal(vectors))
            << mixer << " " << n << " threads, batches of " << batch_tokens;
        EXPECT_TRUE(same(rank_cases(*model, log, split, Part::kTest,
                                    {.users = 1 + batch_tokens / 3, .batch_tokens = batch_tokens}),
                         expected));
      }
  }
  at::set_num_threads(threads);
}

TEST(EvaluateModel, HistoriesAreCutToTheirNewestItems) {
  const auto model = random_model("prism", 100);
  std::vector<int32_t> items;
  for (int32_t i = 0; i < 50; ++i) items.push_back(i);
  const History whole{.items = items, .times = {}}, tail{.items = std::span(items).last(20), .times = {}};
  EXPECT_TRUE(user_vectors(*model, {&whole, 1}).equal(user_vectors(*model, {&tail, 1})));
}

TEST(EvaluateModel, GapsComeFromTheItemBeforeAlsoAtTheCut) {
  const std::vector<int32_t> items = {1, 2, 3, 4};
  const std::vector<int64_t> times = {100, 400, 1900, 2000};
  const History history{.items = items, .times = times};
  const Batch batch = history_batch({&history, 1}, 3, true, 10, c10::Device(c10::kCPU));
  EXPECT_EQ(batch.gaps[0].item<int64_t>(), 30);
  EXPECT_EQ(batch.gaps[1].item<int64_t>(), 150);
  EXPECT_EQ(batch.gaps[2].item<int64_t>(), 10);
  EXPECT_EQ(batch.items[0].item<int64_t>(), 2);
  const Batch first = history_batch({&history, 1}, 9, true, 1, c10::Device(c10::kCPU));
  EXPECT_EQ(first.gaps[0].item<int64_t>(), 0);
}

TEST(EvaluateModel, SampleIsFixedByTheSeedAndHasNoSeenItems) {
  const Interactions log = random_log(100, 300, 20);
  const Split split(log, DataConfig{});
  const auto model = random_model("prism", 300);
  const auto sampled = [&](uint64_t seed, int64_t n) {
    return rank_cases(*model, log, split, Part::kTest, {.sampled = n, .seed = seed});
  };
  EXPECT_TRUE(same(sampled(1, 50), sampled(1, 50)));
  EXPECT_FALSE(same(sampled(1, 50), sampled(2, 50)));
  for (const auto& counts : sampled(1, 50)) EXPECT_EQ(counts.candidates, 51);
  // As many as there are: the full ranking.
  EXPECT_TRUE(same(sampled(1, 1000), rank_cases(*model, log, split, Part::kTest)));
}

TEST(EvaluateModel, LeavesTheModelInItsMode) {
  const auto model = random_model("prism", 10);
  const std::vector<int32_t> items = {1, 2};
  const History history{.items = items, .times = {}};
  model->train();
  const at::Tensor first = user_vectors(*model, {&history, 1});
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(first.requires_grad());
  model->eval();
  EXPECT_TRUE(user_vectors(*model, {&history, 1}).equal(first)) << "no dropout";
  EXPECT_FALSE(model->is_training());
}

TEST(EvaluateModel, NanScoresRankLastAndAreCounted) {
  const Interactions log = random_log(20, 30, 8);
  const Split split(log, DataConfig{});
  const auto model = random_model("prism", 30);
  {
    const c10::NoGradGuard no_grad;
    model->item_vectors()[7].fill_(std::nan(""));
  }
  for (const auto& c : rank_cases(*model, log, split, Part::kTest, {.filter_seen = false}))
    EXPECT_GE(c.nan, 1);
}

}  // namespace
}  // namespace prism
