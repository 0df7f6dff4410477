#include "transitions.h"

#include <algorithm>
#include <numeric>

namespace prism {
namespace {

template <class Take>
void each_pair(const Interactions& log, const Split& split, Take take) {
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto items = split.train(user);
    for (size_t i = 1; i < items.size(); ++i) take(items[i - 1], items[i]);
  }
}

}  // namespace

PopularityOrder::PopularityOrder(const std::vector<int64_t>& counts)
    : place_(counts.size()), begin_(counts.size()), end_(counts.size()) {
  const auto count = [&](int32_t item) { return counts[static_cast<size_t>(item)]; };
  std::vector<int32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return count(a) > count(b); });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && count(order[end]) == count(order[begin])) ++end;
    for (size_t i = begin; i < end; ++i) {
      place_[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
      begin_[i] = static_cast<int32_t>(begin);
      end_[i] = static_cast<int32_t>(end);
    }
  }
}

Transitions::Transitions(const Interactions& log, const Split& split, const PopularityOrder& order) {
  const auto items = static_cast<size_t>(log.items.size());
  std::vector<int64_t> starts(items + 1);
  each_pair(log, split, [&](int32_t from, int32_t) { ++starts[static_cast<size_t>(order.place(from)) + 1]; });
  for (size_t a = 0; a < items; ++a) starts[a + 1] += starts[a];
  std::vector<int32_t> to(static_cast<size_t>(starts[items]));
  std::vector<int64_t> cursor(starts.begin(), starts.end() - 1);
  each_pair(log, split, [&](int32_t from, int32_t item) {
    to[static_cast<size_t>(cursor[static_cast<size_t>(order.place(from))]++)] = order.place(item);
  });
  offsets_.assign(1, 0);
  for (size_t a = 0; a < items; ++a) {
    const auto begin = to.begin() + starts[a], end = to.begin() + starts[a + 1];
    std::sort(begin, end);
    for (auto each = begin; each != end;) {
      const auto stop = std::upper_bound(each, end, *each);
      by_place_.push_back({*each, static_cast<int32_t>(stop - each)});
      each = stop;
    }
    offsets_.push_back(static_cast<int64_t>(by_place_.size()));
  }
  by_count_ = by_place_;
  for (size_t a = 0; a < items; ++a)
    std::stable_sort(by_count_.begin() + offsets_[a], by_count_.begin() + offsets_[a + 1],
                     [](const Next& x, const Next& y) { return x.count > y.count; });
}

}  // namespace prism
