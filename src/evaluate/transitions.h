#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "prism/data/split.h"

namespace prism {

/// Items in the order of popularity: more training interactions first, equal ones by index. A place is a
/// position in this order.
class PopularityOrder {
 public:
  explicit PopularityOrder(const std::vector<int64_t>& counts);

  /// Places [begin, end) of the items that are as popular as the one at `at`.
  struct Group {
    int32_t at, begin, end;
  };
  int32_t place(int32_t item) const { return place_[static_cast<size_t>(item)]; }
  Group group(int32_t item) const {
    return {place(item), begin_[static_cast<size_t>(place(item))], end_[static_cast<size_t>(place(item))]};
  }
  int64_t items() const { return static_cast<int64_t>(place_.size()); }

 private:
  std::vector<int32_t> place_;        ///< [items]
  std::vector<int32_t> begin_, end_;  ///< [places]
};

/// How often item b directly followed item a in the training part, for the pairs that occur. Items are
/// places.
class Transitions {
 public:
  struct Next {
    int32_t place, count;
  };
  Transitions(const Interactions& log, const Split& split, const PopularityOrder& order);

  /// The successors of a place, by place.
  std::span<const Next> by_place(int32_t place) const { return of(by_place_, place); }
  /// The same by falling count, equal counts by place: the order in which Markov ranks them.
  std::span<const Next> by_count(int32_t place) const { return of(by_count_, place); }

 private:
  std::span<const Next> of(const std::vector<Next>& all, int32_t place) const {
    const auto a = static_cast<size_t>(place);
    return std::span(all).subspan(static_cast<size_t>(offsets_[a]),
                                  static_cast<size_t>(offsets_[a + 1] - offsets_[a]));
  }
  std::vector<int64_t> offsets_;  ///< [items + 1]
  std::vector<Next> by_place_, by_count_;
};

}  // namespace prism
