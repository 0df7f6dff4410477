#pragma once
#include <cstdint>
#include <string>

#include "prism/data/data_config.h"
#include "prism/data/split.h"

namespace prism {

/// What figures mean: split, filters, order of ties, candidates. Whatever leaves the program states it.
struct Protocol {
  const DataConfig& config;
  const Split& split;
  int64_t candidates = 0;  ///< items ranked before filter_seen
  bool filter_seen = true;
  /// One sentence.
  std::string text() const;
  /// The object that docs/json.md lists under "protocol"; the sentence is its "text".
  std::string to_json() const;
};

}  // namespace prism
