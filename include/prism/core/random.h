#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace prism {

/// Seed of the named stream: a hash of (seed, name, index). Every random number of the program comes from one
/// seed through such a stream (`{seed, "shuffle", epoch}`, `{seed, "dropout", step}`), so a resumed run needs
/// only its counters to draw the same numbers, and no consumer disturbs another.
uint64_t stream_seed(uint64_t seed, std::string_view name, uint64_t index = 0);

/// SplitMix64 (Steele, Lea and Flood 2014) on a named stream; the same numbers on every machine.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, uint64_t index = 0)
      : state_(stream_seed(seed, name, index)) {}

  uint64_t next();
  /// Uniform in [0, bound), bound >= 1, without modulo bias.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1) with 53 bits.
  double uniform();

  /// Fisher-Yates.
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  uint64_t state_;
};

/// A pseudo-random order of [0, size): which index comes at which place, computed place by place, so that an
/// order of billions needs no memory and a resumed run only its place. A Feistel network of four rounds on
/// the next power of four, walked until it lands inside. The same on every machine.
class Permutation {
 public:
  /// size >= 1.
  Permutation(uint64_t size, uint64_t seed, std::string_view name, uint64_t index = 0);
  /// place < size; every index comes at exactly one place.
  uint64_t operator()(uint64_t place) const;

 private:
  uint64_t size_, key_;
  int half_bits_ = 1;
};

}  // namespace prism
