#include "prism/models/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "prism/core/error.h"
#include "prism/core/random.h"

namespace prism {
namespace {

const std::vector<float> kLogits = {0.0F, 2.0F, 1.0F, 2.0F, -1.0F};

/// Share of each token over many draws.
std::map<int32_t, double> shares(const SamplerConfig& config, const std::unordered_set<int32_t>& seen = {}) {
  std::map<int32_t, double> counts;
  constexpr int kDraws = 20'000;
  RandomStream random(1, "test");
  for (int i = 0; i < kDraws; ++i)
    counts[sample_token(config, kLogits, seen, random.uniform())] += 1.0 / kDraws;
  return counts;
}

TEST(Sampler, DrawsFromTheSoftmax) {
  double sum = 0;
  for (const float logit : kLogits) sum += std::exp(logit);
  const auto counts = shares({});
  for (size_t i = 0; i < kLogits.size(); ++i)
    EXPECT_NEAR(counts.at(static_cast<int32_t>(i)), std::exp(kLogits[i]) / sum, 0.015) << i;
}

TEST(Sampler, ZeroTemperatureTakesTheLikeliestAndTheLowerIdOfEquals) {
  EXPECT_EQ(sample_token({.temperature = 0}, kLogits, {}, 0.999), 1);
  EXPECT_EQ(sample_token({.temperature = 0, .repetition_penalty = 2}, kLogits, {1}, 0), 3);
}

TEST(Sampler, TemperatureSharpens) {
  const double sum = 2 + std::exp(-1 / 0.5) + std::exp(-2 / 0.5) + std::exp(-3 / 0.5);
  EXPECT_NEAR(shares({.temperature = 0.5}).at(2), std::exp(-1 / 0.5) / sum, 0.01);
}

TEST(Sampler, FiltersLeaveTheLikeliest) {
  EXPECT_EQ(shares({.top_k = 1}).size(), 1U);
  EXPECT_EQ(shares({.top_k = 3}).size(), 3U);
  EXPECT_EQ(shares({.top_k = 100}).size(), 5U);
  EXPECT_EQ(shares({.top_p = 0}).size(), 1U);
  EXPECT_EQ(shares({.top_p = 0.5}).size(), 2U);
  EXPECT_EQ(shares({.min_p = 0.9}).size(), 2U);
  EXPECT_EQ(shares({.min_p = 0.3}).size(), 3U);
  EXPECT_EQ(shares({.min_p = 1}).size(), 2U);
}

/// What sample_token promises, over a list that is sorted as a whole.
int32_t drawn_from_a_sorted_list(const SamplerConfig& config, const std::vector<float>& logits,
                                 double uniform) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (config.top_k) ids.resize(std::min(ids.size(), static_cast<size_t>(config.top_k)));
  std::vector<double> probabilities;
  for (const int32_t id : ids)
    probabilities.push_back(std::exp((double{logits[id]} - logits[ids[0]]) / config.temperature));
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  double together = 0;
  size_t count = 0;
  while (count < ids.size() && (count == 0 || (together < config.top_p * sum &&
                                               probabilities[count] >= config.min_p * probabilities[0])))
    together += probabilities[count++];
  double left = uniform * together;
  for (size_t i = 0; i < count; ++i)
    if ((left -= probabilities[i]) < 0) return ids[i];
  return ids[count - 1];
}

TEST(Sampler, LargeVocabulariesDrawAsASortedListDoes) {
  RandomStream random(2, "logits");
  std::vector<float> steep(5000), flat(5000);
  for (size_t i = 0; i < steep.size(); ++i) {
    steep[i] = static_cast<float>(-3 * std::log(1 - random.uniform()));
    flat[i] = std::floor(static_cast<float>(4 * random.uniform())) / 8;  // many equals
  }
  const SamplerConfig configs[] = {{},
                                   {.temperature = 0.7, .top_k = 40},
                                   {.top_p = 0.95},
                                   {.top_p = 0.5, .min_p = 0.01},
                                   {.min_p = 0.9},
                                   {.top_p = 0.99, .top_k = 3000}};
  for (const std::vector<float>& logits : {steep, flat})
    for (const SamplerConfig& config : configs)
      for (int i = 0; i < 40; ++i) {
        const double uniform = random.uniform();
        EXPECT_EQ(sample_token(config, logits, {}, uniform),
                  drawn_from_a_sorted_list(config, logits, uniform))
            << config.top_k << " " << config.top_p << " " << config.min_p << " " << uniform;
      }
}

TEST(Sampler, PenaltyMakesSeenTokensRarer) {
  const auto free = shares({}), penalised = shares({.repetition_penalty = 2}, {1, 4});
  EXPECT_LT(penalised.at(1), free.at(1) * 0.6);
  EXPECT_LT(penalised.at(4), free.at(4) * 0.7);
  EXPECT_GT(penalised.at(3), free.at(3));
}

TEST(Sampler, NanIsNeverDrawnAndInfinityIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> mixed = {nan, 1.0F, nan}, certain = {0.0F, infinite, 1.0F};
  for (const double uniform : {0.0, 0.5, 0.999999}) {
    EXPECT_EQ(sample_token({}, mixed, {}, uniform), 1);
    EXPECT_EQ(sample_token({}, certain, {}, uniform), 1);
  }
  const std::vector<float> none = {nan, nan};
  EXPECT_THROW(sample_token({}, none, {}, 0.5), Error);
}

}  // namespace
}  // namespace prism
