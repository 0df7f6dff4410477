#pragma once
#include <cstdint>

#include "prism/data/interactions.h"

namespace prism {

/// Figures of a log.
struct LogCounts {
  int64_t users = 0, items = 0, interactions = 0;
  int64_t length_min = 0, length_max = 0;  ///< interactions of a user
  double length_median = 0, length_mean = 0;
  int64_t repeated_user_item_rows = 0;  ///< interactions whose item the user had before
  int64_t immediate_repeats = 0;        ///< those directly after the same item
  bool timed = false;
  int64_t time_min = 0, time_max = 0;      ///< in units of 10^-time_decimals
  int64_t users_with_a_tie = 0;            ///< users with two equal timestamps
  int64_t users_tie_between_last_two = 0;  ///< those whose test item depends on the order of ties
};

LogCounts count_log(const Interactions& log);

}  // namespace prism
