#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "prism/data/interactions.h"
#include "timestamp.h"

namespace prism {

/// Collects interactions in file order (16 bytes each, in chunks that are never moved) and groups them by
/// user.
class LogBuilder {
 public:
  explicit LogBuilder(bool timed) : timed_(timed) {}
  Vocabulary users, items;

  void add(int32_t user, int32_t item);
  /// False when the decimals of this and the other timestamps together need more than 64 bits.
  bool add(int32_t user, int32_t item, Decimal time);
  int64_t size() const { return size_; }
  int32_t decimals() const { return decimals_; }
  /// The first timestamps, for messages.
  std::vector<int64_t> first_times(size_t count) const;

  /// Every user's interactions in file order. Empties the builder.
  Interactions group();

 private:
  struct Chunk {
    std::vector<int32_t> user, item;
    std::vector<int64_t> time;
  };
  Chunk& chunk();
  bool raise_decimals(int32_t decimals);

  bool timed_;
  int64_t size_ = 0;
  int64_t lowest_ = 0, highest_ = 0;
  int32_t decimals_ = 0;
  std::deque<Chunk> chunks_;
};

}  // namespace prism
