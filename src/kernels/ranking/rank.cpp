// Rank counting: one pass over the items, three comparisons a score.
#include <cmath>

#include "kernels/ranking/sweep.h"

namespace prism::kernels {
namespace {

using ranking::RowBits;

/// Candidates of one panel, the target left out, compared with the target's score.
void count_panel(const float* scores, uint64_t candidates, uint64_t before, float target_score,
                 RankCounts& counts) {
  const bool target_nan = std::isnan(target_score);
  const RowBits bits = ranking::compare_row(scores, target_nan ? 0 : target_score);
  const uint64_t number = candidates & (bits.greater | bits.equal | bits.lower), nan = candidates & ~number;
  const uint64_t greater = target_nan ? number : bits.greater & candidates;
  const uint64_t equal = target_nan ? nan : bits.equal & candidates;
  counts.greater += std::popcount(greater);
  counts.equal += std::popcount(equal);
  counts.equal_before += std::popcount(equal & before);
  counts.candidates += std::popcount(candidates);
  counts.nan += std::popcount(nan);
}

/// Bits of the items of `panel` with an index below `target`.
uint64_t bits_before(int64_t panel, int64_t target) {
  const int64_t below = target - panel * ItemPanels::kItems;
  if (below <= 0) return 0;
  return below >= 64 ? ~uint64_t{0} : (uint64_t{1} << below) - 1;
}

void add(RankCounts& sum, const RankCounts& part) {
  sum.greater += part.greater;
  sum.equal += part.equal;
  sum.equal_before += part.equal_before;
  sum.candidates += part.candidates;
  sum.nan += part.nan;
}

}  // namespace

void rank_targets(const ItemPanels& items, const RankUsers& users, const int32_t* targets,
                  RankCounts* counts) {
  std::vector<float> target_scores(static_cast<size_t>(users.count));
  std::vector<int64_t> rows(target_scores.size());
  for (int64_t u = 0; u < users.count; ++u) rows[static_cast<size_t>(u)] = u;
  score_pairs(items, users.vectors, rows.data(), targets, users.count, target_scores.data());
  for (int64_t u = 0; u < users.count; ++u) {
    counts[u] = RankCounts{};
    counts[u].candidates = 1;
    counts[u].nan = std::isnan(target_scores[static_cast<size_t>(u)]) ? 1 : 0;
  }
  const ranking::Tasks tasks(users.count, items.panels());
#pragma omp parallel for schedule(dynamic)
  for (const ranking::Task& task : tasks.all()) {
    std::vector<RankCounts> part(static_cast<size_t>(task.last_user - task.first_user));
    ranking::sweep(
        items, users, task, [&](int64_t u, int64_t panel, uint64_t candidates, const float* scores) {
          const int64_t target = targets[u];
          if (target / ItemPanels::kItems == panel)
            candidates &= ~(uint64_t{1} << (target % ItemPanels::kItems));
          count_panel(scores, candidates, bits_before(panel, target), target_scores[static_cast<size_t>(u)],
                      part[static_cast<size_t>(u - task.first_user)]);
        });
#pragma omp critical(prism_rank_targets)
    for (int64_t u = task.first_user; u < task.last_user; ++u)
      add(counts[u], part[static_cast<size_t>(u - task.first_user)]);
  }
}

}  // namespace prism::kernels
