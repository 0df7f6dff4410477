#pragma once
#include <cstdint>
#include <span>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "prism/core/config.h"

namespace prism {

/// How the next token is drawn: section [sampler].
struct SamplerConfig {
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  static constexpr auto fields = std::tuple{
      Field{"temperature", &SamplerConfig::temperature, Range{0, 100}, "",
            "logits are divided by it; 0 takes the likeliest token"},
      Field{"top_k", &SamplerConfig::top_k, Range{0, 1e9}, "tokens", "draw among the likeliest; 0: all"},
      Field{"top_p", &SamplerConfig::top_p, Range{0, 1}, "",
            "draw among the likeliest tokens that together have this probability"},
      Field{"min_p", &SamplerConfig::min_p, Range{0, 1}, "",
            "leave out tokens with less than this share of the likeliest one's probability"},
      Field{"repetition_penalty", &SamplerConfig::repetition_penalty, Range{0.01, 100}, "",
            "positive logits of tokens that were seen are divided by it, negative ones multiplied; 1: off"}};
};

/// The next token. `logits` [vocabulary]; `seen` are the tokens of the text so far; `uniform` in [0, 1) is
/// the only randomness. The filters apply in the order penalty, temperature, top_k, top_p, min_p; the
/// likeliest token always stays, and of equally likely ones the one with the lower id comes first. NaN is
/// never drawn; Error where nothing else is left.
int32_t sample_token(const SamplerConfig& config, std::span<const float> logits,
                     const std::unordered_set<int32_t>& seen, double uniform);

}  // namespace prism
