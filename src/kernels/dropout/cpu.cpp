// Counter-based dropout. The hash is C. Wellons' lowbias32 with the seed mixed in before and between its two
// multiplications; 32-bit words only, so that it vectorises on any x86-64 and ARM.
#include <algorithm>

#include "prism/kernels/dropout.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PRISM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PRISM_CLONES
#endif

namespace prism::kernels {
namespace {

PRISM_CLONES void add_span(HashKeys keys, uint32_t threshold, const float* residual, const float* x,
                           float scale, float* out, uint32_t first, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    out[i] = residual[i] +
             (dropout_hash(first + static_cast<uint32_t>(i), keys) >= threshold ? scale * x[i] : 0.0F);
}

PRISM_CLONES void scale_span(HashKeys keys, uint32_t threshold, const float* x, float scale, float* out,
                             uint32_t first, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    out[i] = dropout_hash(first + static_cast<uint32_t>(i), keys) >= threshold ? scale * x[i] : 0.0F;
}

PRISM_CLONES void mask_span(HashKeys keys, uint32_t threshold, uint8_t* out, uint32_t first, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    out[i] = dropout_hash(first + static_cast<uint32_t>(i), keys) >= threshold ? 1 : 0;
}

/// Splits elements [begin, end) of the data where the high word of the hashed index changes.
template <class Span>
void for_spans(const DropoutMask& mask, int64_t begin, int64_t end, const Span& span) {
  while (begin < end) {
    const int64_t index = mask.first + begin;
    const uint64_t high = static_cast<uint64_t>(index) >> 32;
    const int64_t stop = std::min<int64_t>(end, static_cast<int64_t>((high + 1) << 32) - mask.first);
    span(dropout_keys(mask.seed, high), begin, static_cast<uint32_t>(index), stop - begin);
    begin = stop;
  }
}

}  // namespace

void dropout_add(const DropoutMask& mask, const float* residual, const float* x, float scale, float* out,
                 int64_t begin, int64_t end) {
  for_spans(mask, begin, end, [&](HashKeys keys, int64_t at, uint32_t first, int64_t count) {
    if (residual)
      add_span(keys, mask.threshold, residual + at, x + at, scale, out + at, first, count);
    else
      scale_span(keys, mask.threshold, x + at, scale, out + at, first, count);
  });
}

void dropout_mask(const DropoutMask& mask, uint8_t* out, int64_t begin, int64_t end) {
  for_spans(mask, begin, end, [&](HashKeys keys, int64_t at, uint32_t first, int64_t count) {
    mask_span(keys, mask.threshold, out + at, first, count);
  });
}

}  // namespace prism::kernels
