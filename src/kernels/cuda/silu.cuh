#pragma once
// SiLU and its derivative.
#include <cuda_runtime.h>

namespace prism::kernels::cuda {

template <class C>
struct Silu {
  C value, slope;
};

__device__ inline float exp_of(float x) { return __expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float inverse_of(float x) { return __frcp_rn(x); }
__device__ inline double inverse_of(double x) { return 1 / x; }

/// x s and s (1 + x (1 - s)), s = 1 / (1 + exp(-x)); only exp(-|x|) is taken, so nothing overflows.
template <class C>
__device__ Silu<C> silu(C x) {
  const C e = exp_of(-fabs(x)), near_one = inverse_of(1 + e), far = e * near_one;
  const C s = x < 0 ? far : near_one, rest = x < 0 ? near_one : far;
  return {x * s, s * (1 + x * rest)};
}

}  // namespace prism::kernels::cuda
