#pragma once
#include <cstdint>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/evaluate/metrics.h"
#include "prism/kernels/ranking.h"
#include "prism/models/recommender.h"

namespace prism {

struct EvaluateOptions {
  bool filter_seen = true;      ///< items of the history leave the candidates, except the target
  int64_t sampled = 0;          ///< 0: full ranking; n: the target among n unseen items drawn from `seed`
  uint64_t seed = 42;           ///< of the sample
  int64_t users = 8192;         ///< ranked at a time
  int64_t batch_tokens = 4096;  ///< items of one forward pass
  bool progress = false;
};

/// Where the target of each case stands, in the order of split.cases(part). Memory beyond the model: a copy
/// of the item vectors and what `users` users need. The result does not depend on `users`, `batch_tokens` or
/// the threads. NaN scores rank last and give a warning with their number.
std::vector<kernels::RankCounts> rank_cases(Recommender& model, const Interactions& log, const Split& split,
                                            Part part, const EvaluateOptions& options = {});

/// The same as figures: HR, NDCG, MRR, mean rank and AUC.
RankMetrics evaluate_model(Recommender& model, const Interactions& log, const Split& split, Part part,
                           const std::vector<int64_t>& ks, const EvaluateOptions& options = {});

}  // namespace prism
