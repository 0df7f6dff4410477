#include "prism/compare/match.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

bool near(int64_t found, int64_t wanted, double tolerance) {
  return std::abs(static_cast<double>(found - wanted)) <= tolerance * static_cast<double>(wanted);
}

/// Parameters outside the item table are linear in the FFN width.
std::optional<int64_t> ffn_width_for(ModelSpec& spec, int64_t items, int64_t outside) {
  const int64_t width = spec.model.width, saved = spec.model.ffn_width;
  spec.model.ffn_width = width;
  const int64_t at_width = count_parameters(spec, items).outside();
  spec.model.ffn_width = width + 1;
  const int64_t slope = count_parameters(spec, items).outside() - at_width;
  spec.model.ffn_width = saved;
  if (slope == 0) return {};
  const double more = static_cast<double>(outside - at_width) / static_cast<double>(slope);
  return std::max(width + static_cast<int64_t>(std::lround(more)), (width + 1) / 2);
}

/// The even model width whose parameters come nearest to `total`; 0 where no other width fits the mixer.
int64_t width_for(ModelSpec& spec, int64_t items, int64_t total) {
  const int64_t saved = spec.model.width;
  int64_t best = 0, best_distance = 0;
  for (int64_t width = (saved / 2 + 1) / 2 * 2; width <= 3 * saved; width += 2) {
    spec.model.width = width;
    try {
      const int64_t distance = std::abs(count_parameters(spec, items).total - total);
      if (best == 0 || distance < best_distance) best = width, best_distance = distance;
    } catch (const Error&) {
      continue;  // this width does not fit the mixer's heads
    }
  }
  spec.model.width = saved;
  return best;
}

}  // namespace

ParameterCount count_parameters(const ModelSpec& spec, int64_t items) {
  // A table of one item, so that a search never fills the real one.
  const Recommender model(spec, 1, 0);
  int64_t total = (items - 1) * spec.model.width;
  for (const auto& [part, count] : model.parameter_counts()) total += count;
  return {.total = total, .items = items * spec.model.width};
}

MatchedBy match_parameters(ModelSpec& spec, int64_t items, const ParameterCount& reference, double tolerance,
                           const std::string& label) {
  const RecommenderConfig saved = spec.model;
  const ParameterCount own = count_parameters(spec, items);
  int64_t by_ffn = own.outside(), by_width = own.total;
  if (const auto ffn_width = ffn_width_for(spec, items, reference.outside())) {
    spec.model.ffn_width = *ffn_width;
    by_ffn = count_parameters(spec, items).outside();
    if (near(by_ffn, reference.outside(), tolerance)) return MatchedBy::kFfnWidth;
  }
  spec.model = saved;
  if (const int64_t width = width_for(spec, items, reference.total)) {
    spec.model.width = width;
    by_width = count_parameters(spec, items).total;
    if (near(by_width, reference.total, tolerance)) return MatchedBy::kWidth;
  }
  spec.model = saved;
  usage_error(
      "compare: \"{}\" cannot be matched within {} %: the reference has {} parameters, {} outside the item "
      "table; "
      "it has {} and {}, by its FFN width {} outside at the nearest, by its model width {} in all; give it "
      "other "
      "settings, choose another reference, or leave them apart with --no-match",
      label, 100 * tolerance, with_commas(reference.total), with_commas(reference.outside()),
      with_commas(own.total), with_commas(own.outside()), with_commas(by_ffn), with_commas(by_width));
}

}  // namespace prism
