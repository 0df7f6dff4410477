#pragma once
#include <fmt/format.h>

#include "prism/core/random.h"
#include "prism/data/interactions.h"

namespace prism {

/// A log in which item i + 1 (modulo `items`) always follows item i; users start at random items.
inline Interactions successor_log(int64_t users, int64_t items, int64_t length) {
  Interactions log;
  RandomStream random(1, "successor log");
  for (int64_t item = 0; item < items; ++item) log.items.add(fmt::format("item {}", item));
  for (int64_t user = 0; user < users; ++user) {
    log.users.add(fmt::format("user {}", user));
    auto item = static_cast<int64_t>(random.below(static_cast<uint64_t>(items)));
    for (int64_t t = 0; t < length; ++t, item = (item + 1) % items)
      log.item.push_back(static_cast<int32_t>(item));
    log.offsets.push_back(log.size());
  }
  return log;
}

}  // namespace prism
