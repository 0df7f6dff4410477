#include "prism/models/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

/// Probabilities in place, of sorted candidates.
void softmax(std::vector<Candidate>& candidates, double temperature) {
  const double most = candidates.front().value;
  double sum = 0;
  for (Candidate& candidate : candidates) {
    candidate.value = candidate.value == most ? 1 : std::exp((candidate.value - most) / temperature);
    sum += candidate.value;
  }
  for (Candidate& candidate : candidates) candidate.value /= sum;
}

/// The number of sorted candidates that top_p and min_p leave; at least one.
size_t kept(const SamplerConfig& config, const std::vector<Candidate>& candidates) {
  size_t count = 0;
  for (double together = 0; count < candidates.size(); ++count) {
    const double probability = candidates[count].value;
    if (count > 0 && (together >= config.top_p || probability < config.min_p * candidates.front().value))
      break;
    together += probability;
  }
  return count;
}

}  // namespace

int32_t sample_token(const SamplerConfig& config, std::span<const float> logits,
                     const std::unordered_set<int32_t>& seen, double uniform) {
  std::vector<Candidate> candidates = penalised(config, logits, seen);
  if (config.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), likelier)->id;
  const bool all = config.top_k == 0 || config.top_k >= static_cast<int64_t>(candidates.size());
  const auto end = all ? candidates.end() : candidates.begin() + config.top_k;
  std::partial_sort(candidates.begin(), end, candidates.end(), likelier);
  candidates.erase(end, candidates.end());
  softmax(candidates, config.temperature);
  candidates.resize(kept(config, candidates));
  const double total = std::accumulate(candidates.begin(), candidates.end(), 0.0,
                                       [](double sum, const Candidate& c) { return sum + c.value; });
  double left = uniform * total;
  for (const Candidate& candidate : candidates)
    if ((left -= candidate.value) < 0) return candidate.id;
  return candidates.back().id;
}

}  // namespace prism
