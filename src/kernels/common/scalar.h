#pragma once
// Storage types and the type each is computed in.
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "prism/kernels/types.h"

namespace prism::kernels {

struct BFloat16 {
  uint16_t bits;
};

inline float to_real(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_real(float x) { return x; }
inline double to_real(double x) { return x; }

/// Round to nearest even; NaN stays NaN.
inline BFloat16 to_bfloat16(float x) {
  if (std::isnan(x)) return {0x7FC0};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}
inline void from_real(float x, BFloat16* out) { *out = to_bfloat16(x); }
inline void from_real(float x, float* out) { *out = x; }
inline void from_real(double x, double* out) { *out = x; }

/// Type of arithmetic, gates and states for activations stored as Storage.
template <class Storage>
using RealOf = std::conditional_t<std::is_same_v<Storage, double>, double, float>;

/// Calls f with a null pointer of the storage type: f(float*), f(double*) or f(BFloat16*).
template <class F>
void with_storage(Scalar dtype, F f) {
  if (dtype == Scalar::kFloat64) return f(static_cast<double*>(nullptr));
  if (dtype == Scalar::kFloat32) return f(static_cast<float*>(nullptr));
  return f(static_cast<BFloat16*>(nullptr));
}

/// Address of the row of `view` at (token, step, head).
template <class T>
const T* row_of(const View& view, int64_t token, int64_t step, int64_t head) {
  return static_cast<const T*>(view.data) + token * view.token_stride + step * view.step_stride +
         head * view.head_stride;
}

}  // namespace prism::kernels
