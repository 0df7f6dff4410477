#include "prism/evaluate/baselines.h"

#include <algorithm>
#include <numeric>

#include "transitions.h"

namespace prism {
namespace {

using kernels::RankCounts;

constexpr int64_t kBlock = int64_t{1} << 16;  // cases whose counts are held at a time

// Ranks all items by popularity once; then every target's counts are read off.
class Standings {
 public:
  explicit Standings(std::vector<int64_t> counts) : popularity_(std::move(counts)), of_(popularity_.size()) {
    std::vector<int32_t> order(of_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return popularity(a) > popularity(b); });
    for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      while (end < order.size() && popularity(order[end]) == popularity(order[begin])) ++end;
      for (size_t i = begin; i < end; ++i)
        of_[static_cast<size_t>(order[i])] = {static_cast<int32_t>(begin),
                                              static_cast<int32_t>(end - begin - 1),
                                              static_cast<int32_t>(i - begin)};
    }
  }
  int64_t items() const { return static_cast<int64_t>(of_.size()); }
  int64_t popularity(int32_t item) const { return popularity_[static_cast<size_t>(item)]; }
  /// All items are candidates.
  RankCounts of(int32_t target) const {
    const Standing& s = of_[static_cast<size_t>(target)];
    return {.greater = s.greater, .equal = s.equal, .equal_before = s.equal_before, .candidates = items()};
  }

 private:
  struct Standing {
    int32_t greater, equal, equal_before;
  };
  std::vector<int64_t> popularity_;
  std::vector<Standing> of_;
};

// Ranks one target at a time; a thread's own.
class Ranker {
 public:
  Ranker(const Standings& standings, const Transitions& transitions)
      : standings_(standings),
        transitions_(transitions),
        follows_(static_cast<size_t>(standings.items())),
        hidden_(follows_.size()) {}

  void rank(std::span<const int32_t> history, int32_t target, bool filter_seen, RankCounts& popularity,
            RankCounts& markov) {
    const auto successors = transitions_.after(history.back());
    popularity = standings_.of(target);
    markov = by_transitions(successors, target);
    if (!filter_seen) return;
    for (const auto& next : successors) follows_[static_cast<size_t>(next.item)] = next.count;
    for (const int32_t item : history) {
      if (item == target || hidden_[static_cast<size_t>(item)]) continue;
      hidden_[static_cast<size_t>(item)] = true;
      hide(item, target, popularity, markov);
    }
    for (const int32_t item : history) hidden_[static_cast<size_t>(item)] = false;
    for (const auto& next : successors) follows_[static_cast<size_t>(next.item)] = 0;
  }

 private:
  struct Score {
    int64_t follows, popularity;
    auto operator<=>(const Score&) const = default;
  };
  Score score(int32_t item, int64_t follows) const { return {follows, standings_.popularity(item)}; }

  // Adds (sign 1) or removes (-1) one item beside the target.
  static void count(RankCounts& counts, int64_t sign, int32_t item, Score score, int32_t target,
                    Score target_score) {
    counts.greater += sign * (score > target_score);
    counts.equal += sign * (score == target_score);
    counts.equal_before += sign * (score == target_score && item < target);
  }

  RankCounts by_transitions(std::span<const Transitions::Next> successors, int32_t target) const {
    const auto found = std::lower_bound(successors.begin(), successors.end(), target,
                                        [](const auto& next, int32_t item) { return next.item < item; });
    const bool followed = found != successors.end() && found->item == target;
    const Score target_score = score(target, followed ? found->count : 0);
    RankCounts counts = standings_.of(target);
    if (followed)
      counts.greater = counts.equal = counts.equal_before = 0;  // all but the successors are below
    for (const auto& next : successors) {
      if (next.item == target) continue;
      if (!followed) count(counts, -1, next.item, score(next.item, 0), target, target_score);
      count(counts, 1, next.item, score(next.item, next.count), target, target_score);
    }
    return counts;
  }

  void hide(int32_t item, int32_t target, RankCounts& popularity, RankCounts& markov) const {
    count(popularity, -1, item, score(item, 0), target, score(target, 0));
    count(markov, -1, item, score(item, follows_[static_cast<size_t>(item)]), target,
          score(target, follows_[static_cast<size_t>(target)]));
    --popularity.candidates;
    --markov.candidates;
  }

  const Standings& standings_;
  const Transitions& transitions_;
  std::vector<int32_t> follows_;  // [items] of the last item; zero between calls
  std::vector<char> hidden_;      // [items]; false between calls
};

struct Ranked {
  RankCounts popularity, markov;
  bool target_seen = false;
};

BaselinePart evaluate_part(const Split& split, Part part, const Standings& standings,
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
      Ranker ranker(standings, transitions);
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
  const Standings standings(training_counts(log, split));
  const Transitions transitions(log, split);
  return {.valid = evaluate_part(split, Part::kValid, standings, transitions, ks, filter_seen),
          .test = evaluate_part(split, Part::kTest, standings, transitions, ks, filter_seen)};
}

}  // namespace prism
