// Rows of numbers: conversion between storage and padded work rows, dot products. Compiled once a target.
#if defined(PRISM_KERNELS_COMMON_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_COMMON_ROWS_INL_H_
#undef PRISM_KERNELS_COMMON_ROWS_INL_H_
#else
#define PRISM_KERNELS_COMMON_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "kernels/common/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

template <class T>
HWY_INLINE constexpr int64_t lanes() {
  return static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
}

inline constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// One vector of storage, as the type it is computed in.
template <class T>
HWY_INLINE hn::Vec<Tag<T>> load_vector(const T* from) {
  return hn::LoadU(Tag<T>(), from);
}
HWY_INLINE hn::Vec<Tag<float>> load_vector(const BFloat16* from) {
  const Tag<float> d;
  const hn::Rebind<uint32_t, Tag<float>> d32;
  const hn::Rebind<uint16_t, Tag<float>> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class T>
HWY_INLINE void store_vector(hn::Vec<Tag<T>> v, T* to) {
  hn::StoreU(v, Tag<T>(), to);
}
/// Rounds to nearest even; NaN becomes the quiet NaN.
HWY_INLINE void store_vector(hn::Vec<Tag<float>> v, BFloat16* to) {
  const hn::Rebind<int32_t, Tag<float>> d32;
  const hn::Rebind<uint16_t, Tag<float>> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
  const auto kept = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), hn::Set(d32, 0x7FC00000), rounded);
  const auto high = hn::And(hn::ShiftRight<16>(kept), hn::Set(d32, 0xFFFF));
  hn::StoreU(hn::DemoteTo(d16, high), d16, reinterpret_cast<uint16_t*>(to));
}

/// The first n < lanes elements, zeros after them.
template <class Storage>
HWY_INLINE hn::Vec<Tag<RealOf<Storage>>> load_tail(const Storage* from, int64_t n) {
  Storage padded[lanes<RealOf<Storage>>()] = {};
  std::copy(from, from + n, padded);
  return load_vector(padded);
}
template <class T, class Storage>
HWY_INLINE void store_tail(hn::Vec<Tag<T>> v, Storage* to, int64_t n) {
  Storage padded[lanes<T>()];
  store_vector(v, padded);
  std::copy(padded, padded + n, to);
}

/// to[0..width) = scale * from[0..width), zeros up to `padded` (a multiple of the lanes).
template <class T, class Storage>
HWY_INLINE void load_row(const Storage* from, int64_t width, T scale, T* to, int64_t padded) {
  const Tag<T> d;
  const auto factor = hn::Set(d, scale);
  int64_t c = 0;
  for (; c + lanes<T>() <= width; c += lanes<T>())
    hn::Store(hn::Mul(load_vector(from + c), factor), d, to + c);
  if (c < width) {
    hn::Store(hn::Mul(load_tail(from + c, width - c), factor), d, to + c);
    c += lanes<T>();
  }
  for (; c < padded; c += lanes<T>()) hn::Store(hn::Zero(d), d, to + c);
}

/// to[0..width) = scale * from[0..width).
template <class T, class Storage>
HWY_INLINE void store_row(const T* from, int64_t width, T scale, Storage* to) {
  const Tag<T> d;
  const auto factor = hn::Set(d, scale);
  int64_t c = 0;
  for (; c + lanes<T>() <= width; c += lanes<T>())
    store_vector(hn::Mul(hn::LoadU(d, from + c), factor), to + c);
  if (c < width) store_tail<T>(hn::Mul(hn::LoadU(d, from + c), factor), to + c, width - c);
}

/// One vector of the width; `count` of its elements exist.
struct Columns {
  int64_t first, count;
};

template <class F>
HWY_INLINE void for_columns(int64_t width, int64_t step, F f) {
  int64_t c = 0;
  for (; c + step <= width; c += step) f(std::true_type(), Columns{c, step});
  if (c < width) f(std::false_type(), Columns{c, width - c});
}

template <bool kWhole, class Storage>
HWY_INLINE hn::Vec<Tag<RealOf<Storage>>> load_columns(const Storage* row, Columns c) {
  if constexpr (kWhole)
    return load_vector(row + c.first);
  else
    return load_tail(row + c.first, c.count);
}
template <bool kWhole, class T, class Storage>
HWY_INLINE void store_columns(hn::Vec<Tag<T>> v, Storage* row, Columns c) {
  if constexpr (kWhole)
    store_vector(v, row + c.first);
  else
    store_tail<T>(v, row + c.first, c.count);
}

/// Sum of a * b over `padded` elements of work rows.
template <class T>
HWY_INLINE T dot(const T* a, const T* b, int64_t padded) {
  const Tag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < padded; c += lanes<T>())
    sum = hn::MulAdd(hn::Load(d, a + c), hn::Load(d, b + c), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
