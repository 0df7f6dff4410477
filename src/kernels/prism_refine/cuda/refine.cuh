#pragma once
// What both directions share: GELU, where a thread works, and the choice of the kernel.
#include <cstdint>

#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/prism_refine_cuda.h"

namespace prism::kernels::cuda::refine {

constexpr int kBlock = 256;

template <class C>
struct Activation {
  C value, slope;
};

__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// GELU and its derivative from one exponential, without a branch: the normal distribution's
///   Phi(-|x|) = exp(-x^2 / 2) P(t) / 2,  t = 1 / (1 + 0.2316419 |x|)
/// with the polynomial 7.1.26 of Abramowitz and Stegun, off by at most 7.5e-8.
__device__ inline Activation<float> gelu(float x) {
  const float t = reciprocal(fmaf(0.231641900f, fabsf(x), 1.0f)), y = 0.849321800f * x,
              e = power_of_two(-y * y);
  const float p =
      t * (0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.726576014f + t * 0.530702716f))));
  const float tail = p * e, cumulative = 0.5f + copysignf(0.5f - tail, x);
  return {fmaf(-fabsf(x), tail, fmaxf(x, 0.0f)), fmaf(0.398942280f * x, e, cumulative)};
}
__device__ inline Activation<double> gelu(double x) {
  const double cumulative = 0.5 * erfc(-0.70710678118654752440 * x),
               density = 0.39894228040143267794 * exp(-0.5 * x * x);
  return {x * cumulative, cumulative + x * density};
}

/// The settings of a call; constants in the usual case, so that they cost nothing inside the loops.
template <bool kUsual>
struct Settings {
  template <class C>
  __device__ Activation<C> activate(C x) const {
    if (!kUsual && shape.nonlinearity == Nonlinearity::kIdentity) return {x, C(1)};
    return gelu(x);
  }
  __device__ bool subtract() const { return kUsual || shape.residual == Residual::kSubtract; }
  const PrismRefineShape& shape;
};

/// Threads side by side on one row (a token's head): 2^log2_lanes of them, enough for its width, at most a
/// warp. The 32-bit arithmetic is on purpose: dividing 64-bit numbers costs as much as a step.
struct Rows {
  Rows(const PrismRefineShape& shape, int vector)
      : count(static_cast<uint32_t>(shape.tokens * shape.heads)),
        heads(static_cast<uint32_t>(shape.heads)),
        width(static_cast<uint32_t>(shape.width)) {
    while (log2_lanes < 5 && static_cast<uint32_t>(vector << log2_lanes) < width) ++log2_lanes;
  }
  unsigned blocks() const {
    const int64_t a_block = kBlock >> log2_lanes;
    return static_cast<unsigned>((count + a_block - 1) / a_block);
  }

  uint32_t count, heads;
  uint32_t width;
  int log2_lanes = 0;
};

/// The row and the first channel of this thread.
struct Place {
  __device__ explicit Place(const Rows& rows)
      : row(blockIdx.x * (kBlock >> rows.log2_lanes) + (threadIdx.x >> rows.log2_lanes)),
        lane(threadIdx.x & ((1 << rows.log2_lanes) - 1)),
        exists(row < rows.count),
        t(exists ? row / rows.heads : 0),
        h(exists ? row % rows.heads : 0) {}
  uint32_t row, lane;
  bool exists;
  uint32_t t, h;
};

/// N channels of a view, or `absent` everywhere where the view has no data; kThere: it has.
template <class T, int N, bool kThere = false>
__device__ Vector<T, N> channels(const Strided& view, uint32_t token, uint32_t step, uint32_t head,
                                 uint32_t first, float absent) {
  const auto load = [&] { return load_once<T, N>(view.at<T>(token, step, head, first)); };
  if constexpr (kThere) {
    return load();
  } else {
    if (view.data) return load();
    Vector<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = narrow<T>(absent);
    return out;
  }
}

template <class T>
__device__ Arithmetic<T> gate_of(const Strided& beta, uint32_t token, uint32_t step, uint32_t head) {
  return beta.data ? *beta.at<Arithmetic<T>>(token, step, head, 0) : Arithmetic<T>(1);
}

/// Writes numbers, where they are wanted.
template <class T, int N>
__device__ void put(const Arithmetic<T> (&x)[N], const Strided& out, uint32_t token, uint32_t step,
                    uint32_t head, uint32_t first) {
  if (out.data) store_once(narrow_all<T>(x), out.at<T>(token, step, head, first));
}

/// Whether 16-byte accesses reach every element of a view of T.
template <class T>
bool is_aligned(const View& view) {
  const int64_t unit = kVectorWidth<T>;
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.token_stride % unit == 0 &&
         view.step_stride % unit == 0 && view.head_stride % unit == 0;
}
inline bool is_aligned(const void* out) { return reinterpret_cast<uintptr_t>(out) % 16 == 0; }

/// kUsual: gelu, subtraction, v, u, p and beta, w alone wanted (backward: dw alone given, every gradient
/// wanted).
template <class T, int N, int kSteps, bool kUsual>
struct Variant {
  using Element = T;
  static constexpr int kVector = N, kStepCount = kSteps;
  static constexpr bool kIsUsual = kUsual;
};

template <class T, int N, bool kUsual, class Launch>
void with_steps(int64_t steps, const Launch& launch) {
  if (steps == 1) return launch(Variant<T, N, 1, kUsual>());
  if (steps == 2) return launch(Variant<T, N, 2, kUsual>());
  if (steps == 3) return launch(Variant<T, N, 3, kUsual>());
  launch(Variant<T, N, 4, kUsual>());
}

/// Launches the variant for these sizes; `usual`: no tensor is missing that a layer gives, none is there that
/// it does not; `aligned(T{})` says whether 16-byte vectors can be used at all.
template <class Aligned, class Launch>
const char* with_variant(const PrismRefineShape& shape, bool usual, const Aligned& aligned,
                         const Launch& launch) {
  if (shape.steps < 1 || shape.steps > kMaxRefineSteps) return "L must be 1 to 4";
  if (shape.tokens * shape.heads == 0) return nullptr;
  if (shape.tokens * shape.heads > UINT32_MAX / 2 || shape.width > INT32_MAX)
    return "too large for one launch";
  usual = usual && shape.nonlinearity == Nonlinearity::kGelu && shape.residual == Residual::kSubtract;
  const auto in_type = [&]<class T>(T element) {
    constexpr int kVector = kVectorWidth<T>;
    if (sizeof(T) == sizeof(double) || shape.width % kVector != 0 || !aligned(element))
      with_steps<T, 1, false>(shape.steps, launch);
    else if (usual)
      with_steps<T, kVector, true>(shape.steps, launch);
    else
      with_steps<T, kVector, false>(shape.steps, launch);
  };
  if (shape.dtype == Scalar::kFloat64) with_steps<double, 1, false>(shape.steps, launch);
  if (shape.dtype == Scalar::kFloat32) in_type(float{});
  if (shape.dtype == Scalar::kBFloat16) in_type(__nv_bfloat16{});
  if (shape.dtype == Scalar::kFloat16) in_type(__half{});
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace prism::kernels::cuda::refine
