#include "prism/models/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "prism/core/error.h"

namespace prism {
namespace {

struct Candidate {
  int32_t id;
  double value;  // logit, then probability
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

std::vector<Candidate> penalised(const SamplerConfig& config, std::span<const float> logits,
                                 const std::unordered_set<int32_t>& seen) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    Candidate candidate{static_cast<int32_t>(i), logits[i]};
    if (config.repetition_penalty != 1 && seen.contains(candidate.id))
      candidate.value *= candidate.value > 0 ? 1 / config.repetition_penalty : config.repetition_penalty;
    candidates.push_back(candidate);
  }
  check(!candidates.empty(), "sampler: every logit is NaN");
  return candidates;
}

/// The likeliest candidates first. They are sorted as far as they are asked for: a draw rarely sees more than
/// some hundred of a vocabulary.
class Ranking {
 public:
  /// The `count` likeliest of `candidates`; at least one.
  Ranking(std::vector<Candidate> candidates, size_t count, double temperature)
      : candidates_(std::move(candidates)), temperature_(temperature) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
    if (end != candidates_.end()) std::nth_element(candidates_.begin(), end - 1, candidates_.end(), likelier);
    candidates_.erase(end, candidates_.end());
    most_ = std::min_element(candidates_.begin(), candidates_.end(), likelier)->value;
    for (const Candidate& candidate : candidates_) sum_ += weight(candidate);
  }

  size_t size() const { return candidates_.size(); }
  int32_t id(size_t rank) { return at(rank).id; }
  double probability(size_t rank) { return weight(at(rank)) / sum_; }

 private:
  double weight(const Candidate& candidate) const {
    return candidate.value == most_ ? 1 : std::exp((candidate.value - most_) / temperature_);
  }
  const Candidate& at(size_t rank) {
    constexpr size_t kFirst = 128, kGrowth = 4;
    while (rank >= sorted_) {
      const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_);
      sorted_ = std::min(size(), std::max(kFirst, kGrowth * sorted_));
      std::partial_sort(begin, candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_), candidates_.end(),
                        likelier);
    }
    return candidates_[rank];
  }

  std::vector<Candidate> candidates_;
  double temperature_, most_ = 0, sum_ = 0;
  size_t sorted_ = 0;
};

/// How many candidates top_p and min_p leave, at least one, and their probability together.
std::pair<size_t, double> kept(const SamplerConfig& config, Ranking& ranking) {
  if (config.top_p >= 1 && config.min_p == 0) return {ranking.size(), 1};
  size_t count = 0;
  double together = 0;
  for (; count < ranking.size(); ++count) {
    const double probability = ranking.probability(count);
    if (count > 0 && (together >= config.top_p || probability < config.min_p * ranking.probability(0))) break;
    together += probability;
  }
  return {count, together};
}

}  // namespace

int32_t sample_token(const SamplerConfig& config, std::span<const float> logits,
                     const std::unordered_set<int32_t>& seen, double uniform) {
  std::vector<Candidate> candidates = penalised(config, logits, seen);
  if (config.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), likelier)->id;
  const auto all = static_cast<int64_t>(candidates.size());
  const int64_t likeliest = config.top_k == 0 ? all : std::min(config.top_k, all);
  Ranking ranking(std::move(candidates), static_cast<size_t>(likeliest), config.temperature);
  const auto [count, together] = kept(config, ranking);
  double left = uniform * together;
  for (size_t rank = 0; rank < count; ++rank)
    if ((left -= ranking.probability(rank)) < 0) return ranking.id(rank);
  return ranking.id(count - 1);
}

}  // namespace prism
