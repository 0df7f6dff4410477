#pragma once
// The common loop of rank_targets and top_items: which thread scores which users with which items.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/ranking/tile.h"
#include "prism/kernels/ranking.h"

namespace prism::kernels::ranking {

/// Users [first_user, last_user) with panels [first_panel, last_panel).
struct Task {
  int64_t first_user, last_user, first_panel, last_panel;
};

/// Tasks of one call: blocks of users, and ranges of items where the users alone cannot occupy the threads.
class Tasks {
 public:
  Tasks(int64_t users, int64_t panels) {
    const int64_t threads = omp_get_max_threads();
    block_users_ = std::clamp(ceil_div(users, threads), kGroupUsers, kBlockUsers);
    block_users_ = ceil_div(block_users_, kGroupUsers) * kGroupUsers;
    const int64_t blocks = ceil_div(users, block_users_);
    ranges_ = blocks >= threads
                  ? 1
                  : std::clamp<int64_t>(ceil_div(2 * threads, blocks), 1, std::max<int64_t>(panels, 1));
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t r = 0; r < ranges_; ++r)
        all_.push_back({b * block_users_, std::min(users, (b + 1) * block_users_), panels * r / ranges_,
                        panels * (r + 1) / ranges_});
  }
  const std::vector<Task>& all() const { return all_; }
  int64_t ranges() const { return ranges_; }
  /// The first of the ranges() neighbouring tasks that a user takes part in.
  size_t first_task(int64_t user) const { return static_cast<size_t>(user / block_users_ * ranges_); }

 private:
  /// A panel stays in the first-level cache while the vectors of this many users pass by from the second.
  static constexpr int64_t kBlockUsers = 192;
  static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

  int64_t block_users_ = kGroupUsers, ranges_ = 1;
  std::vector<Task> all_;
};

/// A user's position in its seen list, moving with the panels.
class SeenCursor {
 public:
  SeenCursor() = default;
  SeenCursor(const RankUsers& users, int64_t user, int64_t first_panel) {
    if (!users.seen_offsets) return;
    end_ = users.seen + users.seen_offsets[user + 1];
    next_ = std::lower_bound(users.seen + users.seen_offsets[user], end_, first_panel * ItemPanels::kItems);
  }
  /// Bits of the seen items of `panel`; panels come in ascending order.
  uint64_t bits(int64_t panel) {
    uint64_t bits = 0;
    const int64_t first = panel * ItemPanels::kItems;
    for (; next_ != end_ && *next_ < first + ItemPanels::kItems; ++next_)
      bits |= uint64_t{1} << (*next_ - first);
    return bits;
  }

 private:
  const int32_t *next_ = nullptr, *end_ = nullptr;
};

/// Bits of the items of `panel` that exist and are allowed.
inline uint64_t panel_candidates(const ItemPanels& items, const RankUsers& users, int64_t panel) {
  const int64_t left = items.items() - panel * ItemPanels::kItems;
  const uint64_t exist = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
  return users.allowed ? exist & users.allowed[panel] : exist;
}

/// Calls visit(user, panel, candidates, scores) for all users and panels of the task, a user's panels in
/// ascending order; `candidates` has the bits of the panel's candidates for this user.
template <class Visit>
void sweep(const ItemPanels& items, const RankUsers& users, const Task& task, Visit visit) {
  std::vector<SeenCursor> seen;
  for (int64_t u = task.first_user; u < task.last_user; ++u) seen.emplace_back(users, u, task.first_panel);
  alignas(64) float scores[kGroupUsers * ItemPanels::kItems];
  for (int64_t panel = task.first_panel; panel < task.last_panel; ++panel) {
    const uint64_t exist = panel_candidates(items, users, panel);
    for (int64_t first = task.first_user; first < task.last_user; first += kGroupUsers) {
      const int64_t count = std::min(kGroupUsers, task.last_user - first);
      score_tile(items.panel(panel), items.width(), users.vectors + first * items.width(), count, scores);
      for (int64_t u = first; u < first + count; ++u)
        visit(u, panel, exist & ~seen[static_cast<size_t>(u - task.first_user)].bits(panel),
              scores + (u - first) * ItemPanels::kItems);
    }
  }
}

}  // namespace prism::kernels::ranking
