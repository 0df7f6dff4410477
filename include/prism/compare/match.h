#pragma once
#include <cstdint>
#include <string>

#include "prism/models/recommender.h"

namespace prism {

/// Parameters of a model over `items` items.
struct ParameterCount {
  int64_t total = 0, items = 0;  ///< items: of the item table
  int64_t outside() const { return total - items; }
};
ParameterCount count_parameters(const ModelSpec& spec, int64_t items);

/// How a model was brought to the reference's size.
enum class MatchedBy { kReference, kFfnWidth, kWidth, kNothing };
template <>
struct EnumNames<MatchedBy> {
  static constexpr std::array names{"reference", "ffn_width", "width", "nothing"};
};

/// Changes `spec` until its parameters are within `tolerance` of `reference`: the FFN width (at least half
/// the model width) such that the parameters outside the item table agree; where no FFN width does, or the
/// mixer brings its own FFN, the even model width such that all parameters agree. Usage error with the counts
/// where neither does; `label` opens it.
MatchedBy match_parameters(ModelSpec& spec, int64_t items, const ParameterCount& reference, double tolerance,
                           const std::string& label);

}  // namespace prism
