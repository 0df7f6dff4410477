#include "prism/core/random.h"

namespace prism {
namespace {

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

}  // namespace

uint64_t stream_seed(uint64_t seed, std::string_view name, uint64_t index) {
  uint64_t hash = mixed(seed + kGolden);
  for (const char c : name) hash = mixed((hash ^ static_cast<unsigned char>(c)) + kGolden);
  return mixed((hash ^ mixed(index + kGolden)) + kGolden);
}

uint64_t RandomStream::next() { return mixed(state_ += kGolden); }

uint64_t RandomStream::below(uint64_t bound) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t value = next();
  while (value >= limit) value = next();
  return value % bound;
}

Permutation::Permutation(uint64_t size, uint64_t seed, std::string_view name, uint64_t index)
    : size_(size), key_(stream_seed(seed, name, index)) {
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

uint64_t Permutation::operator()(uint64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = place >> half_bits_, right = place & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mixed(key_ + kGolden * (round + 1) + right) & mask);
      left = right;
      right = next;
    }
    place = left << half_bits_ | right;
  } while (place >= size_);
  return place;
}

double RandomStream::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

}  // namespace prism
