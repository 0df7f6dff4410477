#include "prism/evaluate/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "prism/core/error.h"
#include "prism/core/random.h"

namespace prism {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kResamples = 1000;
constexpr size_t kMostGroups = 20'000;

// Adds `sign` to the counts for one candidate other than the target.
template <class Real>
void count_one(Real score, int64_t index, Real target_score, int64_t target, int64_t sign,
               kernels::RankCounts& counts) {
  const bool nan = std::isnan(score), target_nan = std::isnan(target_score);
  const bool equal = score == target_score || (nan && target_nan);
  counts.greater += sign * (score > target_score || (target_nan && !nan));
  counts.equal += sign * equal;
  counts.equal_before += sign * (equal && index < target);
  counts.nan += sign * nan;
  counts.candidates += sign;
}

double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Sums of figures over users, and how many users have each figure.
struct Sums {
  std::vector<double> sum, count;
  explicit Sums(size_t width) : sum(width), count(width) {}

  void add(const std::vector<double>& row) {
    for (size_t m = 0; m < sum.size(); ++m) {
      if (std::isnan(row[m])) continue;
      sum[m] += row[m];
      ++count[m];
    }
  }
  void add(const Sums& other) {
    for (size_t m = 0; m < sum.size(); ++m) sum[m] += other.sum[m], count[m] += other.count[m];
  }
  double mean(size_t m) const { return count[m] > 0 ? sum[m] / count[m] : kNone; }
};

}  // namespace

template <class Real>
kernels::RankCounts count_ranks(std::span<const Real> scores, int64_t target, std::span<const int32_t> seen) {
  const auto items = static_cast<int64_t>(scores.size());
  check(target >= 0 && target < items, "count_ranks: target {} is outside [0, {})", target, items);
  const auto count = [&, target_score = scores[static_cast<size_t>(target)]](int64_t item, int64_t sign,
                                                                             kernels::RankCounts& counts) {
    if (item != target)
      count_one(scores[static_cast<size_t>(item)], item, target_score, target, sign, counts);
  };
  kernels::RankCounts counts;
  counts.candidates = 1;
  counts.nan = std::isnan(scores[static_cast<size_t>(target)]);
  for (int64_t item = 0; item < items; ++item) count(item, 1, counts);
  std::vector<int32_t> hidden(seen.begin(), seen.end());
  std::sort(hidden.begin(), hidden.end());
  hidden.erase(std::unique(hidden.begin(), hidden.end()), hidden.end());
  for (const int32_t item : hidden) count(item, -1, counts);
  return counts;
}

template kernels::RankCounts count_ranks(std::span<const float>, int64_t, std::span<const int32_t>);
template kernels::RankCounts count_ranks(std::span<const double>, int64_t, std::span<const int32_t>);

RankMetrics::RankMetrics(const std::vector<int64_t>& ks) {
  for (const int64_t k : ks)
    if (std::find(ks_.begin(), ks_.end(), k) == ks_.end()) ks_.push_back(k);
}

void RankMetrics::add(const kernels::RankCounts& counts, bool target_seen) {
  const auto others = static_cast<double>(counts.candidates - 1);
  const double won = static_cast<double>(counts.lower()) + 0.5 * static_cast<double>(counts.equal);
  users_.push_back({.rank = static_cast<int32_t>(counts.rank()),
                    .seen = target_seen,
                    .auc = counts.candidates > 1 ? won / others : kNone});
  seen_targets_ += target_seen;
  nan_scores_ += counts.nan;
}

std::vector<std::string> RankMetrics::names() const {
  std::vector<std::string> names;
  for (const int64_t k : ks_) {
    names.push_back(fmt::format("HR@{}", k));
    names.push_back(fmt::format("NDCG@{}", k));
  }
  names.insert(names.end(), {"MRR", "mean_rank", "AUC"});
  return names;
}

// The figures of one user, in the order of names().
void RankMetrics::figures(const User& user, bool miss_seen, double* out) const {
  const bool miss = miss_seen && user.seen;
  const double gain = 1 / std::log2(1.0 + user.rank);
  for (const int64_t k : ks_) {
    const bool hit = !miss && user.rank <= k;
    *out++ = hit;
    *out++ = hit ? gain : 0;
  }
  *out++ = miss ? 0 : 1.0 / user.rank;
  *out++ = user.rank;
  *out++ = user.auc;
}

std::vector<Metric> RankMetrics::mean_of(bool miss_seen) const {
  const std::vector<std::string> labels = names();
  std::vector<double> row(labels.size());
  Sums sums(labels.size());
  for (const User& user : users_) {
    figures(user, miss_seen, row.data());
    sums.add(row);
  }
  std::vector<Metric> metrics;
  for (size_t m = 0; m < labels.size(); ++m) metrics.push_back({labels[m], sums.mean(m), kNone, kNone});
  return metrics;
}

std::vector<Metric> RankMetrics::means() const { return mean_of(false); }

std::vector<Metric> RankMetrics::means_with_seen_targets_missed() const {
  std::vector<Metric> metrics = mean_of(true);
  metrics.resize(metrics.size() - 2);  // mean_rank and AUC say nothing about a miss
  return metrics;
}

std::vector<Metric> RankMetrics::with_intervals(uint64_t seed) const {
  std::vector<Metric> metrics = means();
  if (users_.empty()) return metrics;
  const size_t width = metrics.size();
  std::vector<double> row(width);
  std::vector<Sums> groups(std::min(users_.size(), kMostGroups), Sums(width));
  for (size_t u = 0; u < users_.size(); ++u) {
    figures(users_[u], false, row.data());
    groups[u % groups.size()].add(row);
  }
  std::vector<double> means(width * kResamples);
#pragma omp parallel for
  for (int64_t r = 0; r < kResamples; ++r) {
    RandomStream stream(seed, "bootstrap", static_cast<uint64_t>(r));
    Sums sums(width);
    for (size_t g = 0; g < groups.size(); ++g) sums.add(groups[stream.below(groups.size())]);
    for (size_t m = 0; m < width; ++m) means[m * kResamples + static_cast<size_t>(r)] = sums.mean(m);
  }
  for (size_t m = 0; m < width; ++m) {
    const auto begin = means.begin() + static_cast<std::ptrdiff_t>(m * kResamples);
    std::vector<double> sample(begin, begin + kResamples);
    std::erase_if(sample, [](double value) { return std::isnan(value); });
    if (sample.empty()) continue;
    std::sort(sample.begin(), sample.end());
    metrics[m].low = quantile(sample, 0.025);
    metrics[m].high = quantile(sample, 0.975);
  }
  return metrics;
}

}  // namespace prism
