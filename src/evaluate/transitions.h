#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "prism/data/split.h"

namespace prism {

/// How often item b directly followed item a in the training part, for the pairs that occur.
class Transitions {
 public:
  struct Next {
    int32_t item, count;
  };
  Transitions(const Interactions& log, const Split& split);

  /// The successors of an item, by index.
  std::span<const Next> after(int32_t item) const {
    const auto a = static_cast<size_t>(item);
    return std::span(next_).subspan(static_cast<size_t>(offsets_[a]),
                                    static_cast<size_t>(offsets_[a + 1] - offsets_[a]));
  }
  /// Number of distinct pairs.
  int64_t size() const { return static_cast<int64_t>(next_.size()); }

 private:
  std::vector<int64_t> offsets_;  ///< [items + 1]
  std::vector<Next> next_;
};

}  // namespace prism
