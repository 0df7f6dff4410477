#pragma once
#include <cstdint>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/evaluate/metrics.h"

namespace prism {

/// The two baselines on one part of a split.
struct BaselinePart {
  RankMetrics popularity, markov;
};

struct BaselineResult {
  BaselinePart valid, test;
  const BaselinePart& of(Part part) const { return part == Part::kValid ? valid : test; }
};

/// How often each item occurs in the training part. [items]
std::vector<int64_t> training_counts(const Interactions& log, const Split& split);

/// Full ranking of the targets by
///   popularity: score(i) = training interactions of i;
///   markov: score(i) = (how often i directly followed the last item of the history in the training part,
///           then popularity), compared in that order.
/// With `filter_seen` the items of the history are no candidates, except the target. Equal scores rank by
/// item index. Never users x items: ranks come from the order by popularity and the few items that differ
/// from it. Memory: 20 bytes a training interaction at most, 12 bytes an item and one more a thread.
BaselineResult evaluate_baselines(const Interactions& log, const Split& split, const std::vector<int64_t>& ks,
                                  bool filter_seen);

}  // namespace prism
