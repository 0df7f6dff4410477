#include "transitions.h"

#include <algorithm>

namespace prism {
namespace {

template <class Take>
void each_pair(const Interactions& log, const Split& split, Take take) {
  for (int64_t user = 0; user < log.users.size(); ++user) {
    const auto items = split.train(user);
    for (size_t i = 1; i < items.size(); ++i) take(static_cast<size_t>(items[i - 1]), items[i]);
  }
}

}  // namespace

Transitions::Transitions(const Interactions& log, const Split& split) {
  const auto items = static_cast<size_t>(log.items.size());
  std::vector<int64_t> starts(items + 1);
  each_pair(log, split, [&](size_t from, int32_t) { ++starts[from + 1]; });
  for (size_t a = 0; a < items; ++a) starts[a + 1] += starts[a];
  std::vector<int32_t> to(static_cast<size_t>(starts[items]));
  std::vector<int64_t> cursor(starts.begin(), starts.end() - 1);
  each_pair(log, split, [&](size_t from, int32_t item) { to[static_cast<size_t>(cursor[from]++)] = item; });
  offsets_.assign(1, 0);
  for (size_t a = 0; a < items; ++a) {
    const auto begin = to.begin() + starts[a], end = to.begin() + starts[a + 1];
    std::sort(begin, end);
    for (auto each = begin; each != end;) {
      const auto stop = std::upper_bound(each, end, *each);
      next_.push_back({*each, static_cast<int32_t>(stop - each)});
      each = stop;
    }
    offsets_.push_back(static_cast<int64_t>(next_.size()));
  }
}

}  // namespace prism
