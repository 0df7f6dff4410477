#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "prism/data/vocabulary.h"

namespace prism {

/// The interactions of a log, grouped by user, each user's in time order.
/// Indices of users and items follow their first appearance in the unfiltered file.
struct Interactions {
  Vocabulary users, items;
  std::vector<int64_t> offsets = {0};  ///< [users + 1]; user u owns [offsets[u], offsets[u + 1])
  std::vector<int32_t> item;           ///< [n] item indices
  std::vector<int64_t> time;           ///< [n], or empty for a file without timestamps
  int32_t time_decimals = 0;           ///< a timestamp of the file = time / 10^time_decimals, exactly

  int64_t size() const { return static_cast<int64_t>(item.size()); }
  int64_t length(int64_t user) const { return offset(user + 1) - offset(user); }
  /// The items of a user in time order.
  std::span<const int32_t> history(int64_t user) const {
    return std::span(item).subspan(static_cast<size_t>(offset(user)), static_cast<size_t>(length(user)));
  }
  /// The times of `history(user)`; empty for a file without timestamps.
  std::span<const int64_t> times(int64_t user) const {
    if (time.empty()) return {};
    return std::span(time).subspan(static_cast<size_t>(offset(user)), static_cast<size_t>(length(user)));
  }
  int64_t offset(int64_t user) const { return offsets[static_cast<size_t>(user)]; }
};

/// A stored time as the file has it: (17000000005, 1) -> "1700000000.5".
std::string time_text(int64_t time, int32_t decimals);

}  // namespace prism
