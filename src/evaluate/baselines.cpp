#include "prism/evaluate/baselines.h"

#include <algorithm>

#include "transitions.h"

namespace prism {
namespace {

using kernels::RankCounts;

constexpr int64_t kBlock = int64_t{1} << 16;  // cases whose counts are held at a time

using Group = PopularityOrder::Group;
using Next = Transitions::Next;

// Number of successors that stand before (count, place) in the order of Transitions::by_count.
int64_t before(std::span<const Next> successors, int32_t count, int32_t place) {
  const auto stands_before = [&](const Next& next, int) {
    return next.count > count || (next.count == count && next.place < place);
  };
  return std::lower_bound(successors.begin(), successors.end(), 0, stands_before) - successors.begin();
}

// The same in the order of Transitions::by_place.
int64_t before(std::span<const Next> successors, int32_t place) {
  const auto stands_before = [&](const Next& next, int) { return next.place < place; };
  return std::lower_bound(successors.begin(), successors.end(), 0, stands_before) - successors.begin();
}

// Ranks one target at a time, in O(log successors) and as much again for every item of the history; a
// thread's own.
class Ranker {
 public:
  Ranker(const PopularityOrder& order, const Transitions& transitions)
      : order_(order), transitions_(transitions), hidden_(static_cast<size_t>(order.items())) {}

  void rank(std::span<const int32_t> history, int32_t target, bool filter_seen, RankCounts& popularity,
            RankCounts& markov) {
    const int32_t last = order_.place(history.back());
    const Group group = order_.group(target);
    const int32_t follows = count_after(last, group.at);
    popularity = by_popularity(group);
    markov = follows > 0 ? among_successors(last, group, follows) : behind_successors(last, group);
    if (!filter_seen) return;
    for (const int32_t item : history) {
      if (item == target || hidden_[static_cast<size_t>(item)]) continue;
      hidden_[static_cast<size_t>(item)] = true;
      const int32_t place = order_.place(item);
      hide(popularity, group, place, 0);
      hide(markov, group, place, count_after(last, place) - follows);
    }
    for (const int32_t item : history) hidden_[static_cast<size_t>(item)] = false;
  }

 private:
  // How often `place` directly followed `last`.
  int32_t count_after(int32_t last, int32_t place) const {
    const auto successors = transitions_.by_place(last);
    const auto at = static_cast<size_t>(before(successors, place));
    return at < successors.size() && successors[at].place == place ? successors[at].count : 0;
  }

  RankCounts by_popularity(const Group& group) const {
    return {.greater = group.begin,
            .equal = group.end - group.begin - 1,
            .equal_before = group.at - group.begin,
            .candidates = order_.items(),
            .nan = 0};
  }

  // The target is a successor: only successors can beat or equal it.
  RankCounts among_successors(int32_t last, const Group& group, int32_t follows) const {
    const auto successors = transitions_.by_count(last);
    const int64_t begin = before(successors, follows, group.begin);
    return {.greater = begin,
            .equal = before(successors, follows, group.end) - begin - 1,
            .equal_before = before(successors, follows, group.at) - begin,
            .candidates = order_.items(),
            .nan = 0};
  }

  // The target is none: all successors beat it, the others stand by popularity.
  RankCounts behind_successors(int32_t last, const Group& group) const {
    const auto successors = transitions_.by_place(last);
    const int64_t begin = before(successors, group.begin);
    RankCounts counts = by_popularity(group);
    counts.greater += static_cast<int64_t>(successors.size()) - begin;
    counts.equal -= before(successors, group.end) - begin;
    counts.equal_before -= before(successors, group.at) - begin;
    return counts;
  }

  // Takes one item from the candidates. `lead`: how much more often than the target it followed the last
  // item.
  static void hide(RankCounts& counts, const Group& target, int32_t place, int32_t lead) {
    const bool equal = lead == 0 && place >= target.begin && place < target.end;
    counts.greater -= lead > 0 || (lead == 0 && place < target.begin);
    counts.equal -= equal;
    counts.equal_before -= equal && place < target.at;
    --counts.candidates;
  }

  const PopularityOrder& order_;
  const Transitions& transitions_;
  std::vector<char> hidden_;  // [items]; false between calls
};

struct Ranked {
  RankCounts popularity, markov;
  bool target_seen = false;
};

BaselinePart evaluate_part(const Split& split, Part part, const PopularityOrder& order,
                           const Transitions& transitions, const std::vector<int64_t>& ks, bool filter_seen) {
  BaselinePart result{RankMetrics(ks), RankMetrics(ks)};
  const std::vector<Case>& cases = split.cases(part);
  const auto total = static_cast<int64_t>(cases.size());
  std::vector<Ranked> block;
  for (int64_t begin = 0; begin < total; begin += kBlock) {
    const int64_t count = std::min(kBlock, total - begin);
    block.assign(static_cast<size_t>(count), {});
#pragma omp parallel if (count > 256)
    {
      Ranker ranker(order, transitions);
#pragma omp for schedule(dynamic, 256)
      for (int64_t i = 0; i < count; ++i) {
        const Case& c = cases[static_cast<size_t>(begin + i)];
        Ranked& out = block[static_cast<size_t>(i)];
        const auto history = split.history(c);
        ranker.rank(history, c.target, filter_seen, out.popularity, out.markov);
        out.target_seen = std::find(history.begin(), history.end(), c.target) != history.end();
      }
    }
    for (const Ranked& ranked : block) {
      result.popularity.add(ranked.popularity, ranked.target_seen);
      result.markov.add(ranked.markov, ranked.target_seen);
    }
  }
  return result;
}

}  // namespace

std::vector<int64_t> training_counts(const Interactions& log, const Split& split) {
  std::vector<int64_t> counts(static_cast<size_t>(log.items.size()));
  for (int64_t user = 0; user < log.users.size(); ++user)
    for (const int32_t item : split.train(user)) ++counts[static_cast<size_t>(item)];
  return counts;
}

BaselineResult evaluate_baselines(const Interactions& log, const Split& split, const std::vector<int64_t>& ks,
                                  bool filter_seen) {
  const PopularityOrder order(training_counts(log, split));
  const Transitions transitions(log, split, order);
  return {.valid = evaluate_part(split, Part::kValid, order, transitions, ks, filter_seen),
          .test = evaluate_part(split, Part::kTest, order, transitions, ks, filter_seen)};
}

}  // namespace prism
