#pragma once
// Short vectors that move as one access, and the step between storage and arithmetic types.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "prism/kernels/types.h"

namespace prism::kernels::cuda {

inline constexpr int kWarpSize = 32;

/// What a storage type is computed in.
template <class T>
struct ArithmeticOf {
  using type = float;
};
template <>
struct ArithmeticOf<double> {
  using type = double;
};
template <class T>
using Arithmetic = typename ArithmeticOf<T>::type;

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <class T>
__device__ inline T narrow(Arithmetic<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

/// N consecutive elements, aligned for one access of at most 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T at[N];
};

/// Elements in 16 bytes.
template <class T>
inline constexpr int kVectorWidth = 16 / sizeof(T);

__device__ inline void narrow_pair(float x, float y, __nv_bfloat16* out) {
  *reinterpret_cast<__nv_bfloat162*>(out) = __floats2bfloat162_rn(x, y);
}
__device__ inline void narrow_pair(float x, float y, __half* out) {
  *reinterpret_cast<__half2*>(out) = __floats2half2_rn(x, y);
}

/// A load of data that nobody reads again: it leaves the caches first.
template <class T, int N>
__device__ Vector<T, N> load_once(const T* from) {
  using Loaded = Vector<T, N>;
  if constexpr (sizeof(Loaded) == 16) {
    const int4 raw = __ldcs(reinterpret_cast<const int4*>(from));
    return *reinterpret_cast<const Loaded*>(&raw);
  } else {
    return *reinterpret_cast<const Loaded*>(from);
  }
}

template <class T, int N>
__device__ void store_once(const Vector<T, N>& x, T* to) {
  if constexpr (sizeof(x) == 16)
    __stcs(reinterpret_cast<int4*>(to), *reinterpret_cast<const int4*>(&x));
  else
    *reinterpret_cast<Vector<T, N>*>(to) = x;
}

/// A View as a kernel holds it: with strides below 2^32 an address costs a few instructions.
struct Strided {
  void* data = nullptr;
  uint32_t token_stride = 0, step_stride = 0, head_stride = 0;

  template <class T>
  __device__ T* at(uint32_t token, uint32_t step, uint32_t head, uint32_t channel) const {
    return static_cast<T*>(data) + (uint64_t{token} * token_stride + uint64_t{step} * step_stride +
                                    uint64_t{head} * head_stride + channel);
  }
};

/// Gathers views, and remembers whether all of them can be held.
class Holder {
 public:
  Strided hold(const View& view) {
    for (const int64_t stride : {view.token_stride, view.step_stride, view.head_stride})
      fits_ = fits_ && stride >= 0 && stride <= int64_t{UINT32_MAX};
    return {const_cast<void*>(view.data), static_cast<uint32_t>(view.token_stride),
            static_cast<uint32_t>(view.step_stride), static_cast<uint32_t>(view.head_stride)};
  }
  /// A contiguous [tokens, steps, heads, width].
  Strided hold(void* data, int64_t steps, int64_t heads, int64_t width) {
    return hold(View{data, steps * heads * width, heads * width, width});
  }
  bool fits() const { return fits_; }

 private:
  bool fits_ = true;
};

/// Rounded two at a time where the hardware can.
template <class T, int N>
__device__ Vector<T, N> narrow_all(const Arithmetic<T> (&x)[N]) {
  Vector<T, N> out;
  if constexpr (N % 2 == 0 && sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < N; i += 2) narrow_pair(x[i], x[i + 1], out.at + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = narrow<T>(x[i]);
  }
  return out;
}

/// The sum of x over the threads of a warp whose lane numbers agree below `first`, in a fixed order.
template <class C>
__device__ C sum_across(C x, int first, int end = kWarpSize) {
  for (int offset = first; offset < end; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

}  // namespace prism::kernels::cuda
