#include "prism/data/summary.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace prism {
namespace {

void count_lengths(const Interactions& log, LogCounts& counts) {
  std::vector<int64_t> lengths(static_cast<size_t>(log.users.size()));
  for (size_t u = 0; u < lengths.size(); ++u) lengths[u] = log.length(static_cast<int64_t>(u));
  if (lengths.empty()) return;
  std::sort(lengths.begin(), lengths.end());
  const size_t half = lengths.size() / 2;
  counts.length_min = lengths.front();
  counts.length_max = lengths.back();
  counts.length_median = lengths.size() % 2 == 1 ? static_cast<double>(lengths[half])
                                                 : static_cast<double>(lengths[half - 1] + lengths[half]) / 2;
  counts.length_mean = static_cast<double>(log.size()) / static_cast<double>(lengths.size());
}

void count_repeats(const Interactions& log, LogCounts& counts) {
  std::vector<int32_t> last_user(static_cast<size_t>(log.items.size()), -1);
  for (int32_t user = 0; user < log.users.size(); ++user) {
    const auto items = log.history(user);
    for (size_t i = 0; i < items.size(); ++i) {
      int32_t& last = last_user[static_cast<size_t>(items[i])];
      counts.repeated_user_item_rows += last == user;
      counts.immediate_repeats += i > 0 && items[i] == items[i - 1];
      last = user;
    }
  }
}

void count_times(const Interactions& log, LogCounts& counts) {
  counts.timed = !log.time.empty();
  if (!counts.timed) return;
  const auto [low, high] = std::minmax_element(log.time.begin(), log.time.end());
  counts.time_min = *low;
  counts.time_max = *high;
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto times = log.times(user);
    counts.users_with_a_tie += std::adjacent_find(times.begin(), times.end()) != times.end();
    counts.users_tie_between_last_two += times.size() > 1 && times.back() == times[times.size() - 2];
  }
}

}  // namespace

LogCounts count_log(const Interactions& log) {
  LogCounts counts;
  counts.users = log.users.size();
  counts.items = log.items.size();
  counts.interactions = log.size();
  count_lengths(log, counts);
  count_repeats(log, counts);
  count_times(log, counts);
  return counts;
}

}  // namespace prism
