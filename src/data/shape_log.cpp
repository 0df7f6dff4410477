#include "shape_log.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

namespace prism {
namespace {

struct Stamped {
  int64_t time;
  int32_t rank, item;
};

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view without_zeros(std::string_view digits) {
  return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
}

// `rank` is empty for ties in file order.
void sort_user(int64_t* time, int32_t* item, size_t count, const std::vector<int32_t>& rank) {
  std::vector<Stamped> rows(count);
  for (size_t i = 0; i < count; ++i)
    rows[i] = {time[i], rank.empty() ? 0 : rank[static_cast<size_t>(item[i])], item[i]};
  std::stable_sort(rows.begin(), rows.end(), [](const Stamped& a, const Stamped& b) {
    return std::tie(a.time, a.rank) < std::tie(b.time, b.rank);
  });
  for (size_t i = 0; i < count; ++i) time[i] = rows[i].time, item[i] = rows[i].item;
}

// Marks rows of one user that repeat an item within a run of equal times.
int64_t mark_duplicates(const Interactions& log, int64_t user, std::vector<bool>& repeated) {
  int64_t found = 0;
  const auto times = log.times(user);
  const auto items = log.history(user);
  std::vector<std::pair<int32_t, size_t>> run;  // item, position
  for (size_t begin = 0, end = 0; begin < times.size(); begin = end) {
    for (end = begin + 1; end < times.size() && times[end] == times[begin]; ++end) {
    }
    if (end - begin < 2) continue;
    run.clear();
    for (size_t i = begin; i < end; ++i) run.emplace_back(items[i], i);
    std::sort(run.begin(), run.end());
    for (size_t i = 1; i < run.size(); ++i) {
      if (run[i].first != run[i - 1].first) continue;
      repeated[static_cast<size_t>(log.offset(user)) + run[i].second] = true;
      ++found;
    }
  }
  return found;
}

// Keeps the rows for which `keep(user, position)` holds, in place.
template <class Keep>
void keep_rows(Interactions& log, Keep keep) {
  size_t to = 0, from = 0;
  for (size_t user = 0; user + 1 < log.offsets.size(); ++user) {
    const auto end = static_cast<size_t>(log.offsets[user + 1]);
    for (; from < end; ++from) {
      if (!keep(user, from)) continue;
      log.item[to] = log.item[from];
      if (!log.time.empty()) log.time[to] = log.time[from];
      ++to;
    }
    log.offsets[user + 1] = static_cast<int64_t>(to);
  }
  log.item.resize(to);
  if (!log.time.empty()) log.time.resize(to);
}

std::vector<int64_t> count_items(const Interactions& log) {
  std::vector<int64_t> counts(static_cast<size_t>(log.items.size()));
  for (const int32_t item : log.item) ++counts[static_cast<size_t>(item)];
  return counts;
}

// The names with uses[i] > 0, in the old order; `fresh[i]` becomes their new index.
Vocabulary used_names(const Vocabulary& names, const std::vector<int64_t>& uses,
                      std::vector<int32_t>& fresh) {
  Vocabulary used;
  fresh.assign(uses.size(), -1);
  for (size_t i = 0; i < uses.size(); ++i)
    if (uses[i] > 0) fresh[i] = static_cast<int32_t>(used.add(names.name(static_cast<int64_t>(i))));
  return used;
}

void drop_unused(Interactions& log) {
  std::vector<int64_t> lengths(static_cast<size_t>(log.users.size()));
  for (size_t u = 0; u < lengths.size(); ++u) lengths[u] = log.offsets[u + 1] - log.offsets[u];
  const std::vector<int64_t> uses = count_items(log);
  const auto unused = [](const std::vector<int64_t>& counts) {
    return std::find(counts.begin(), counts.end(), 0) != counts.end();
  };
  std::vector<int32_t> fresh;
  if (unused(uses)) {
    log.items = used_names(log.items, uses, fresh);
    for (int32_t& item : log.item) item = fresh[static_cast<size_t>(item)];
  }
  if (unused(lengths)) {
    log.users = used_names(log.users, lengths, fresh);
    std::erase_if(lengths, [](int64_t length) { return length == 0; });
    log.offsets.assign(1, 0);
    for (const int64_t length : lengths) log.offsets.push_back(log.offsets.back() + length);
  }
}

LogSize size_of(const Interactions& log) { return {log.users.size(), log.items.size(), log.size()}; }

}  // namespace

std::vector<int32_t> order_of_ids(const Vocabulary& items) {
  std::vector<int32_t> order(static_cast<size_t>(items.size())), rank(order.size());
  std::iota(order.begin(), order.end(), 0);
  const bool numbers =
      std::all_of(order.begin(), order.end(), [&](int32_t i) { return all_digits(items.name(i)); });
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const std::string_view x = items.name(a), y = items.name(b);
    if (!numbers) return x < y;
    const std::string_view p = without_zeros(x), q = without_zeros(y);
    return std::tuple(p.size(), p, x) < std::tuple(q.size(), q, y);
  });
  for (size_t i = 0; i < order.size(); ++i) rank[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return rank;
}

void sort_by_time(Interactions& log, TieRule ties, ReadReport& report) {
  if (log.time.empty()) return;
  const std::vector<int32_t> rank = ties == TieRule::kItem ? order_of_ids(log.items) : std::vector<int32_t>{};
  int64_t unsorted = 0, tied = 0, negative = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : unsorted, tied, negative) if (log.size() > 10000)
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto count = static_cast<size_t>(log.length(user));
    int64_t* time = log.time.data() + log.offset(user);
    const bool sorted = std::is_sorted(time, time + count);
    unsorted += !sorted;
    if (!sorted || !rank.empty()) sort_user(time, log.item.data() + log.offset(user), count, rank);
    for (size_t i = 1; i < count; ++i) tied += time[i] == time[i - 1];
    negative += std::lower_bound(time, time + count, 0) - time;
  }
  report.unsorted_users = unsorted;
  report.tied_pairs = tied;
  report.negative_times = negative;
}

void handle_duplicates(Interactions& log, DuplicateRule rule, ReadReport& report) {
  std::vector<bool> repeated(log.time.size());
  for (int64_t user = 0; user < log.users.size() && report.tied_pairs > 0; ++user)
    report.exact_duplicates += mark_duplicates(log, user, repeated);
  report.duplicates_dropped = rule == DuplicateRule::kDropExact;
  if (!report.duplicates_dropped || report.exact_duplicates == 0) return;
  keep_rows(log, [&](size_t, size_t row) { return !repeated[row]; });
}

void filter_log(Interactions& log, int64_t min_user, int64_t min_item, ReadReport& report) {
  drop_unused(log);
  report.before = size_of(log);
  const auto user_length = [&](size_t user) { return log.offsets[user + 1] - log.offsets[user]; };
  for (int64_t before = -1; before != log.size() && (min_user > 1 || min_item > 1);) {
    before = log.size();
    const std::vector<int64_t> uses = count_items(log);
    keep_rows(log, [&](size_t, size_t row) { return uses[static_cast<size_t>(log.item[row])] >= min_item; });
    std::vector<bool> stays(static_cast<size_t>(log.users.size()));
    for (size_t user = 0; user < stays.size(); ++user) stays[user] = user_length(user) >= min_user;
    keep_rows(log, [&](size_t user, size_t) { return stays[user]; });
    report.filter_rounds += before != log.size();
  }
  drop_unused(log);
  report.after = size_of(log);
}

}  // namespace prism
