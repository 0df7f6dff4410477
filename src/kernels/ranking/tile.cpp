// The SIMD part: scores of six users with one panel of 64 items, and comparisons of 64 scores with a value.
#include "kernels/ranking/tile.h"

#include <bit>
#include <cstring>

// The register tile needs its loops unrolled, which -O2 alone does not do.
#ifdef __clang__
#define PRISM_UNROLL _Pragma("unroll")
#else
#define PRISM_UNROLL _Pragma("GCC unroll 8")
#endif

// Scalable vectors cannot be members of an array, which the register tile is.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ranking/tile.cpp"
#include <hwy/foreach_target.h>  // includes this file once a target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace prism::kernels::ranking::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPanel = 64;
using D = hn::CappedTag<float, 16>;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kLanes >= 16 ? 4 : 2;  // a user's sums in registers; see kGroupUsers

/// Users x (kVectors * kLanes) scores from one column range of the panel.
template <size_t Users>
HWY_INLINE void score_columns(const float* HWY_RESTRICT panel, int64_t width, const float* HWY_RESTRICT users,
                              float* HWY_RESTRICT scores) {
  const D d;
  hn::Vec<D> sums[Users][kVectors];
  PRISM_UNROLL
  for (size_t u = 0; u < Users; ++u) PRISM_UNROLL
  for (size_t v = 0; v < kVectors; ++v) sums[u][v] = hn::Zero(d);
  for (int64_t i = 0; i < width; ++i) {
    hn::Vec<D> items[kVectors];
    PRISM_UNROLL
    for (size_t v = 0; v < kVectors; ++v) items[v] = hn::Load(d, panel + i * kPanel + v * kLanes);
    PRISM_UNROLL
    for (size_t u = 0; u < Users; ++u) {
      const auto value = hn::Set(d, users[static_cast<int64_t>(u) * width + i]);
      PRISM_UNROLL
      for (size_t v = 0; v < kVectors; ++v) sums[u][v] = hn::MulAdd(value, items[v], sums[u][v]);
    }
  }
  PRISM_UNROLL
  for (size_t u = 0; u < Users; ++u) PRISM_UNROLL
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[u][v], d, scores + u * kPanel + v * kLanes);
}

template <size_t Users>
HWY_INLINE void score_users(const float* panel, int64_t width, const float* users, float* scores) {
  for (size_t column = 0; column < kPanel; column += kVectors * kLanes)
    score_columns<Users>(panel + column, width, users, scores + column);
}

void score_tile(const float* panel, int64_t width, const float* users, int64_t count, float* scores) {
  switch (count) {
    case 1:
      return score_users<1>(panel, width, users, scores);
    case 2:
      return score_users<2>(panel, width, users, scores);
    case 3:
      return score_users<3>(panel, width, users, scores);
    case 4:
      return score_users<4>(panel, width, users, scores);
    case 5:
      return score_users<5>(panel, width, users, scores);
    default:
      return score_users<6>(panel, width, users, scores);
  }
}

float score_one(const float* panel, int64_t width, const float* user, int64_t column) {
  const hn::CappedTag<float, 1> d;  // MulAdd of the same target: fused where score_tile's is
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < width; ++i)
    sum = hn::MulAdd(hn::Set(d, user[i]), hn::Set(d, panel[i * kPanel + column]), sum);
  return hn::GetLane(sum);
}

template <class Mask>
HWY_INLINE uint64_t to_bits(Mask mask) {
  static_assert(std::endian::native == std::endian::little);
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(D(), mask, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

RowBits compare_row(const float* scores, float value) {
  const D d;
  const auto value_v = hn::Set(d, value);
  RowBits bits{};
  for (size_t i = 0; i < kPanel; i += kLanes) {
    const auto scores_v = hn::Load(d, scores + i);
    bits.greater |= to_bits(hn::Gt(scores_v, value_v)) << i;
    bits.equal |= to_bits(hn::Eq(scores_v, value_v)) << i;
    bits.lower |= to_bits(hn::Lt(scores_v, value_v)) << i;
  }
  return bits;
}

uint64_t greater_row(const float* scores, float value) {
  const D d;
  const auto value_v = hn::Set(d, value);
  uint64_t bits = 0;
  for (size_t i = 0; i < kPanel; i += kLanes) bits |= to_bits(hn::Gt(hn::Load(d, scores + i), value_v)) << i;
  return bits;
}

}  // namespace prism::kernels::ranking::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prism::kernels::ranking {

HWY_EXPORT(score_tile);
HWY_EXPORT(score_one);
HWY_EXPORT(compare_row);
HWY_EXPORT(greater_row);

void score_tile(const float* panel, int64_t width, const float* user_vectors, int64_t users, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_tile)(panel, width, user_vectors, users, scores);
}
float score_one(const float* panel, int64_t width, const float* user_vector, int64_t column) {
  return HWY_DYNAMIC_DISPATCH(score_one)(panel, width, user_vector, column);
}
RowBits compare_row(const float* scores, float value) {
  return HWY_DYNAMIC_DISPATCH(compare_row)(scores, value);
}
uint64_t greater_row(const float* scores, float value) {
  return HWY_DYNAMIC_DISPATCH(greater_row)(scores, value);
}

}  // namespace prism::kernels::ranking
#endif  // HWY_ONCE
