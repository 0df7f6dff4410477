#pragma once
#include <cstdint>

namespace prism::kernels {

/// The mask of one dropout: element i of the data is kept when hash(seed, first + i) >= threshold; threshold
/// = rate * 2^32.
struct DropoutMask {
  uint64_t seed = 0;
  uint32_t threshold = 0;
  int64_t first = 0;  ///< at least 0
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
HashKeys dropout_keys(uint64_t seed, uint64_t high);

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
