// Top-k: a heap a user, touched only by scores above its threshold.
#include <cmath>
#include <limits>

#include "kernels/ranking/sweep.h"

namespace prism::kernels {
namespace {

struct Entry {
  float score;
  int32_t item;
};

/// Whether a stands before b in a user's list.
bool before(const Entry& a, const Entry& b) {
  if (a.score > b.score) return true;
  if (a.score < b.score) return false;
  const bool a_nan = std::isnan(a.score), b_nan = std::isnan(b.score);
  if (a_nan != b_nan) return b_nan;
  return a.item < b.item;
}

/// The first k entries of those added, in any order of adding.
class TopList {
 public:
  void reset(int64_t k) { limit_ = static_cast<size_t>(k); }
  bool full() const { return heap_.size() >= limit_; }
  /// The last entry's score; nothing with a lower one can enter a full list.
  float threshold() const { return heap_.front().score; }
  void add(Entry entry) {
    if (!full()) {
      heap_.push_back(entry);
      std::push_heap(heap_.begin(), heap_.end(), before);
    } else if (limit_ && before(entry, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), before);
      heap_.back() = entry;
      std::push_heap(heap_.begin(), heap_.end(), before);
    }
  }
  std::vector<Entry>& entries() { return heap_; }

 private:
  size_t limit_ = 0;
  std::vector<Entry> heap_;  ///< the last entry of the list is in front
};

/// Adds a panel's candidates. Panels come in ascending order, so an equal score cannot displace an entry.
void add_panel(const float* scores, uint64_t candidates, int64_t panel, TopList& list) {
  if (list.full() && !std::isnan(list.threshold()))
    candidates &= ranking::greater_row(scores, list.threshold());
  for (; candidates; candidates &= candidates - 1) {
    const int bit = std::countr_zero(candidates);
    list.add({scores[bit], static_cast<int32_t>(panel * ItemPanels::kItems + bit)});
  }
}

void write_list(std::vector<Entry>& entries, int64_t k, int32_t* top, float* scores, int64_t* found) {
  std::sort(entries.begin(), entries.end(), before);
  *found = static_cast<int64_t>(entries.size());
  for (int64_t i = 0; i < k; ++i) {
    const bool valid = i < *found;
    top[i] = valid ? entries[static_cast<size_t>(i)].item : -1;
    scores[i] = valid ? entries[static_cast<size_t>(i)].score : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

void top_items(const ItemPanels& items, const RankUsers& users, int64_t k, int32_t* top, float* scores,
               int64_t* found) {
  k = std::max<int64_t>(k, 0);
  const int64_t kept = std::min(k, items.items());
  const ranking::Tasks tasks(users.count, items.panels());
  std::vector<std::vector<TopList>> lists(tasks.all().size());
#pragma omp parallel for schedule(dynamic)
  for (size_t t = 0; t < tasks.all().size(); ++t) {
    const ranking::Task& task = tasks.all()[t];
    lists[t].resize(static_cast<size_t>(task.last_user - task.first_user));
    for (TopList& list : lists[t]) list.reset(kept);
    if (kept > 0)
      ranking::sweep(items, users, task,
                     [&](int64_t u, int64_t panel, uint64_t candidates, const float* row) {
                       add_panel(row, candidates, panel, lists[t][static_cast<size_t>(u - task.first_user)]);
                     });
  }
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t u = 0; u < users.count; ++u) {
    TopList merged;
    merged.reset(kept);
    const size_t first = tasks.first_task(u);
    for (size_t t = first; t < first + static_cast<size_t>(tasks.ranges()); ++t)
      for (const Entry& entry : lists[t][static_cast<size_t>(u - tasks.all()[t].first_user)].entries())
        merged.add(entry);
    write_list(merged.entries(), k, top + u * k, scores + u * k, found + u);
  }
}

}  // namespace prism::kernels
