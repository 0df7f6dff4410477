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

double RandomStream::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

}  // namespace prism
