#include "prism/kernels/ranking.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "prism/core/random.h"

namespace prism::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Problem {
  int64_t users, items, width;
  std::vector<float> user_vectors, item_vectors;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> seen, targets;

  Problem(int64_t user_count, int64_t item_count, int64_t vector_width, bool coarse)
      : users(user_count), items(item_count), width(vector_width) {
    RandomStream random(7, "ranking test", static_cast<uint64_t>(items + width));
    // Coarse values make many equal scores.
    auto value = [&] {
      return coarse ? static_cast<float>(random.below(3)) - 1 : static_cast<float>(random.uniform() - 0.5);
    };
    for (int64_t i = 0; i < users * width; ++i) user_vectors.push_back(value());
    for (int64_t i = 0; i < items * width; ++i) item_vectors.push_back(value());
    for (int64_t u = 0; u < users; ++u) {
      std::vector<int32_t> list;
      for (uint64_t n = random.below(30); n > 0; --n)
        list.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(items))));
      std::sort(list.begin(), list.end());
      seen.insert(seen.end(), list.begin(), list.end());
      offsets.push_back(static_cast<int64_t>(seen.size()));
      targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(items))));
    }
  }
  RankUsers rank_users() const {
    return {.vectors = user_vectors.data(),
            .count = users,
            .seen_offsets = offsets.data(),
            .seen = seen.data(),
            .allowed = nullptr};
  }
  bool is_seen(int64_t u, int64_t item) const {
    return std::binary_search(seen.begin() + offsets[static_cast<size_t>(u)],
                              seen.begin() + offsets[static_cast<size_t>(u) + 1], static_cast<int32_t>(item));
  }
};

/// All scores of one user, one pair at a time.
std::vector<float> user_scores(const Problem& problem, const ItemPanels& panels, int64_t user) {
  std::vector<int32_t> ids(static_cast<size_t>(problem.items));
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<int64_t> rows(ids.size(), user);
  std::vector<float> scores(ids.size(), kNan);
  score_pairs(panels, problem.user_vectors.data(), rows.data(), ids.data(), problem.items, scores.data());
  return scores;
}

bool comes_before(const std::vector<float>& s, int32_t a, int32_t b) {
  const float x = s[static_cast<size_t>(a)], y = s[static_cast<size_t>(b)];
  if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
  if (!std::isnan(x) && x != y) return x > y;
  return a < b;
}

RankCounts brute_counts(const std::vector<float>& s, const std::vector<bool>& candidate, int32_t target) {
  RankCounts c{.candidates = 1, .nan = std::isnan(s[static_cast<size_t>(target)])};
  const float t = s[static_cast<size_t>(target)];
  for (size_t i = 0; i < s.size(); ++i) {
    if (!candidate[i] || static_cast<int32_t>(i) == target) continue;
    ++c.candidates;
    c.nan += std::isnan(s[i]);
    const bool equal = std::isnan(t) ? std::isnan(s[i]) : s[i] == t;
    c.equal += equal;
    c.equal_before += equal && static_cast<int32_t>(i) < target;
    c.greater += std::isnan(t) ? !std::isnan(s[i]) : s[i] > t;
  }
  return c;
}

bool same(const RankCounts& a, const RankCounts& b) {
  return a.greater == b.greater && a.equal == b.equal && a.equal_before == b.equal_before &&
         a.candidates == b.candidates && a.nan == b.nan;
}

struct Shape {
  int64_t users, items, width;
  bool coarse;
};
const std::vector<Shape> kShapes = {{1, 1, 1, true},     {1, 64, 3, true},   {5, 63, 8, true},
                                    {6, 65, 16, false},  {7, 200, 64, true}, {200, 1000, 5, true},
                                    {13, 300, 50, false}};

/// Ranks and lists against sorting every score of every user.
void check_shape(const Shape& shape) {
  const Problem problem(shape.users, shape.items, shape.width, shape.coarse);
  const ItemPanels panels(problem.item_vectors.data(), shape.items, shape.width);
  std::vector<RankCounts> counts(static_cast<size_t>(shape.users));
  rank_targets(panels, problem.rank_users(), problem.targets.data(), counts.data());
  const int64_t k = 20;
  std::vector<int32_t> top(static_cast<size_t>(shape.users * k));
  std::vector<float> scores(top.size());
  std::vector<int64_t> found(static_cast<size_t>(shape.users));
  top_items(panels, problem.rank_users(), k, top.data(), scores.data(), found.data());
  for (int64_t u = 0; u < shape.users; ++u) {
    const auto s = user_scores(problem, panels, u);
    std::vector<bool> candidate(s.size());
    std::vector<int32_t> order;
    for (int32_t i = 0; i < shape.items; ++i) {
      candidate[static_cast<size_t>(i)] = !problem.is_seen(u, i);
      if (candidate[static_cast<size_t>(i)]) order.push_back(i);
    }
    EXPECT_TRUE(same(counts[static_cast<size_t>(u)],
                     brute_counts(s, candidate, problem.targets[static_cast<size_t>(u)])));
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return comes_before(s, a, b); });
    ASSERT_EQ(found[static_cast<size_t>(u)], std::min<int64_t>(k, static_cast<int64_t>(order.size())));
    for (int64_t i = 0; i < found[static_cast<size_t>(u)]; ++i) {
      const auto item = order[static_cast<size_t>(i)];
      ASSERT_EQ(top[static_cast<size_t>(u * k + i)], item) << "user " << u << " place " << i;
      EXPECT_EQ(scores[static_cast<size_t>(u * k + i)], s[static_cast<size_t>(item)]);
    }
  }
}

TEST(Ranking, CountsAndListsAgreeWithSortingEveryScore) {
  for (const Shape& shape : kShapes) check_shape(shape);
}

TEST(Ranking, EveryInstructionSetOfThisMachine) {
  ASSERT_FALSE(hwy::SupportedAndGeneratedTargets().empty());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    check_shape({7, 200, 64, true});
    check_shape({13, 300, 50, false});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Ranking, ScoreIsOneFusedChainInTheOrderOfTheWidth) {
  const Problem problem(7, 130, 33, false);
  const ItemPanels panels(problem.item_vectors.data(), problem.items, problem.width);
  const auto scores = user_scores(problem, panels, 6);
  int different = 0;
  for (int64_t item = 0; item < problem.items; ++item) {
    float fused = 0;
    for (int64_t i = 0; i < problem.width; ++i)
      fused = std::fma(problem.user_vectors[static_cast<size_t>(6 * problem.width + i)],
                       problem.item_vectors[static_cast<size_t>(item * problem.width + i)], fused);
    EXPECT_NEAR(fused, scores[static_cast<size_t>(item)], 1e-6);
    different += fused != scores[static_cast<size_t>(item)];
  }
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "skipped: no fused multiply-add on this machine";
  EXPECT_EQ(different, 0);
}

TEST(Ranking, BitsDoNotDependOnUsersBlocksOrThreads) {
  const Problem problem(50, 777, 24, false);
  const ItemPanels panels(problem.item_vectors.data(), problem.items, problem.width);
  const int64_t k = problem.items;
  auto lists = [&](int threads, int64_t batch) {
    omp_set_num_threads(threads);
    std::vector<float> scores(static_cast<size_t>(problem.users * k), -1);
    std::vector<int32_t> top(scores.size());
    std::vector<int64_t> found(static_cast<size_t>(problem.users));
    for (int64_t u = 0; u < problem.users; u += batch) {
      RankUsers users = problem.rank_users();
      users.count = std::min(batch, problem.users - u);
      users.vectors += u * problem.width;
      users.seen_offsets += u;
      top_items(panels, users, k, top.data() + u * k, scores.data() + u * k, found.data() + u);
    }
    return std::pair{scores, top};
  };
  const int before = omp_get_max_threads();
  const auto expected = lists(1, problem.users);
  for (const int threads : {1, 2, 5})
    for (const int64_t batch : {1, 4, 7, 50}) {
      const auto got = lists(threads, batch);
      EXPECT_EQ(std::memcmp(got.first.data(), expected.first.data(), expected.first.size() * sizeof(float)),
                0);
      EXPECT_EQ(got.second, expected.second);
    }
  omp_set_num_threads(before);
}

TEST(Ranking, AllowedItemsLimitTheListButNeverHideATarget) {
  const Problem problem(9, 150, 4, true);
  const ItemPanels panels(problem.item_vectors.data(), problem.items, problem.width);
  std::vector<uint64_t> allowed(3, 0);
  for (const int item : {3, 64, 149}) allowed[static_cast<size_t>(item / 64)] |= uint64_t{1} << (item % 64);
  RankUsers users = problem.rank_users();
  users.allowed = allowed.data();
  users.seen_offsets = nullptr;
  std::vector<int32_t> top(9 * 5);
  std::vector<float> scores(top.size());
  std::vector<int64_t> found(9);
  top_items(panels, users, 5, top.data(), scores.data(), found.data());
  for (size_t u = 0; u < 9; ++u) {
    ASSERT_EQ(found[u], 3);
    std::vector<int32_t> list(top.begin() + static_cast<int64_t>(u) * 5,
                              top.begin() + static_cast<int64_t>(u) * 5 + 3);
    std::sort(list.begin(), list.end());
    EXPECT_EQ(list, (std::vector<int32_t>{3, 64, 149}));
    EXPECT_EQ(top[u * 5 + 3], -1);
    EXPECT_TRUE(std::isnan(scores[u * 5 + 4]));
  }
  std::vector<RankCounts> counts(9);
  const std::vector<int32_t> targets(9, 10);
  rank_targets(panels, users, targets.data(), counts.data());
  for (const RankCounts& c : counts) EXPECT_EQ(c.candidates, 4);
}

TEST(Ranking, MetricCases) {
  std::ifstream file(std::string(PRISM_SHARED_DIR) + "/data/rec/metric_cases.json");
  if (!file) GTEST_SKIP() << "skipped: no metric_cases.json";
  const auto cases = nlohmann::json::parse(file);
  for (const auto& test : cases["cases"]) {
    std::vector<float> vectors;
    for (const auto& score : test["scores"]) vectors.push_back(score.is_null() ? kNan : score.get<float>());
    const ItemPanels panels(vectors.data(), static_cast<int64_t>(vectors.size()), 1);
    const float one = 1;
    auto seen = test["seen"].get<std::vector<int32_t>>();
    std::sort(seen.begin(), seen.end());
    const std::vector<int64_t> offsets = {0, static_cast<int64_t>(seen.size())};
    const auto target = test["target"].get<int32_t>();
    RankCounts counts;
    rank_targets(panels,
                 {.vectors = &one,
                  .count = 1,
                  .seen_offsets = offsets.data(),
                  .seen = seen.data(),
                  .allowed = nullptr},
                 &target, &counts);
    EXPECT_EQ(counts.rank(), test["rank"].get<int64_t>()) << test["name"];
    EXPECT_EQ(counts.candidates, test["candidates"].get<int64_t>()) << test["name"];
    if (test["AUC"].is_null()) continue;
    const double auc = (static_cast<double>(counts.lower()) + 0.5 * static_cast<double>(counts.equal)) /
                       static_cast<double>(counts.candidates - 1);
    EXPECT_NEAR(auc, test["AUC"].get<double>(), 1e-6) << test["name"];
  }
}

TEST(Ranking, NanScoresComeLastInIndexOrder) {
  const std::vector<float> vectors = {kNan, 1, kNan, -std::numeric_limits<float>::infinity(), 2, kNan};
  const ItemPanels panels(vectors.data(), 6, 1);
  const float one = 1;
  std::vector<int32_t> top(6);
  std::vector<float> scores(6);
  int64_t found = 0;
  const RankUsers users{
      .vectors = &one, .count = 1, .seen_offsets = nullptr, .seen = nullptr, .allowed = nullptr};
  top_items(panels, users, 6, top.data(), scores.data(), &found);
  EXPECT_EQ(top, (std::vector<int32_t>{4, 1, 3, 0, 2, 5}));
  std::vector<int32_t> short_top(4);
  top_items(panels, users, 4, short_top.data(), scores.data(), &found);
  EXPECT_EQ(short_top, (std::vector<int32_t>{4, 1, 3, 0}));
}

}  // namespace
}  // namespace prism::kernels
