#pragma once
#include <cstdint>

namespace prism::kernels {

/// The mask of one dropout: element i of the data is kept when hash(seed, first + i) >= threshold; threshold
/// = rate * 2^32.
struct DropoutMask {
  uint64_t seed = 0;
  uint32_t threshold = 0;
  int64_t first = 0;  ///< at least 0
  /// On a GPU, or null: where the seed stands when the kernel runs; of a recorded launch it changes.
  const int64_t* seed_on_device = nullptr;
};

/// out_i = residual_i + scale x_i where element i is kept, else residual_i; for begin <= i < end. `residual`
/// may be null (zeros). Elements may be computed in any split of the range.
void dropout_add(const DropoutMask& mask, const float* residual, const float* x, float scale, float* out,
                 int64_t begin, int64_t end);

/// out_i = 1 where element i is kept, else 0.
void dropout_mask(const DropoutMask& mask, uint8_t* out, int64_t begin, int64_t end);

/// The two constants that the hash takes from the seed for elements whose index has the high word `high`.
/// With them, on 32-bit words:  x = i ^ first;  x ^= x >> 16;  x *= 0x7feb352d;  x += second;  x ^= x >> 15;
/// x *= 0x846ca68b;  x ^= x >> 16.
struct HashKeys {
  uint32_t first, second;
};

#ifdef __CUDACC__
__host__ __device__
#endif
    inline HashKeys
    dropout_keys(uint64_t seed, uint64_t high) {
  uint64_t z = seed + (high + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

#ifdef __CUDACC__
__host__ __device__
#endif
    inline uint32_t
    dropout_hash(uint32_t i, HashKeys keys) {
  uint32_t x = i ^ keys.first;
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x += keys.second;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

}  // namespace prism::kernels
