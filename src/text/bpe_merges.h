#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace prism {

/// The merges of byte-pair encoding: which two neighbours become one token, and which merge goes first.
class BpeMerges {
 public:
  /// The next merge, after those added before.
  void add(int32_t left, int32_t right, int32_t merged);

  /// Merges `symbols` until no pair is left that merges: the earliest merge first, the leftmost of equals.
  /// O(n log n).
  void apply(std::vector<int32_t>& symbols) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  const Merge* find(int32_t left, int32_t right) const;

  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace prism
