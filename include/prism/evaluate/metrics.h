#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "prism/kernels/ranking.h"

namespace prism {

/// One figure of an evaluation. `low` and `high` bound its 95 % interval; NaN without one.
struct Metric {
  std::string name;
  double value;
  double low, high;
};

/// Counts for `target` in one row of scores; float or double, NaN below every number and equal to NaN.
/// `seen` items, in any order, are not candidates; the target always is. Throws Error for a target outside
/// the row.
template <class Real>
kernels::RankCounts count_ranks(std::span<const Real> scores, int64_t target, std::span<const int32_t> seen);

/// Collects where each user's target stands and turns it into figures, each user counting once:
///   HR@k = [rank <= k], NDCG@k = [rank <= k] / log2(1 + rank), MRR = 1 / rank, mean_rank,
///   AUC = (lower + equal / 2) / (candidates - 1), over the users that have another candidate.
/// It does not matter how the counts were found. 16 bytes a user.
class RankMetrics {
 public:
  /// A k that is given again counts once, where it stands first.
  explicit RankMetrics(const std::vector<int64_t>& ks);

  /// `target_seen`: the target is in the user's history and stayed a candidate all the same.
  void add(const kernels::RankCounts& counts, bool target_seen = false);

  int64_t users() const { return static_cast<int64_t>(users_.size()); }
  int64_t seen_targets() const { return seen_targets_; }
  /// Scores that were NaN, over all candidates of all users.
  int64_t nan_scores() const { return nan_scores_; }
  const std::vector<int64_t>& ks() const { return ks_; }

  /// HR@k and NDCG@k for every k, MRR, mean_rank, AUC (NaN where no user has one). 0 users: all NaN.
  std::vector<Metric> means() const;
  /// The same where a target that was seen before counts 0 in HR, NDCG and MRR; without mean_rank and AUC.
  std::vector<Metric> means_with_seen_targets_missed() const;
  /// means() with percentile bootstrap intervals, 1,000 resamples of users. Above 20,000 users every 20,000th
  /// forms a group that is drawn as one, which leaves the variance of a mean what it is. The same seed gives
  /// the same intervals on any number of threads.
  std::vector<Metric> with_intervals(uint64_t seed) const;

 private:
  struct User {
    int32_t rank;
    bool seen;
    double auc;  ///< NaN: none
  };
  std::vector<std::string> names() const;
  void figures(const User& user, bool miss_seen, double* out) const;
  std::vector<Metric> mean_of(bool miss_seen) const;

  std::vector<int64_t> ks_;
  std::vector<User> users_;
  int64_t seen_targets_ = 0, nan_scores_ = 0;
};

}  // namespace prism
