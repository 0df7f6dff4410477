#pragma once
// What both directions share: the threads of a row, the channels of a thread, and the choice of the kernel.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/silu.cuh"
#include "kernels/rms_norm/cuda/norm.h"

namespace prism::kernels::cuda::norm {

constexpr int kBlock = 256, kWarps = kBlock / kWarpSize;
/// Channels that a thread keeps in registers, in a WarpTeam and in a BlockTeam.
struct Channels {
  int warp, block;
};

struct Rows {
  int64_t count = 0, heads = 1;
  uint32_t width = 1;
  int log2_lanes = 0;  ///< of a WarpTeam
};

/// 2^log2_lanes lanes of a warp work on a row, several teams side by side.
class WarpTeam {
 public:
  static constexpr bool kIsBlock = false;
  __device__ explicit WarpTeam(const Rows& rows) : log2_(rows.log2_lanes) {}
  __device__ uint32_t lanes() const { return 1u << log2_; }
  __device__ uint32_t lane() const { return threadIdx.x & (lanes() - 1); }
  /// Which of the block's teams this is, and how many there are.
  __device__ uint32_t index() const { return threadIdx.x >> log2_; }
  __device__ uint32_t count() const { return kBlock >> log2_; }
  /// Sums over the team, in a fixed order; all threads of the block call it.
  template <class C, int M>
  __device__ void sum(C (&x)[M]) {
#pragma unroll
    for (int m = 0; m < M; ++m) x[m] = sum_across(x[m], 1, static_cast<int>(lanes()));
  }

 private:
  int log2_;
};

/// A whole block works on a row.
class BlockTeam {
 public:
  static constexpr bool kIsBlock = true;
  __device__ explicit BlockTeam(const Rows&) {}
  __device__ uint32_t lanes() const { return kBlock; }
  __device__ uint32_t lane() const { return threadIdx.x; }
  __device__ uint32_t index() const { return 0; }
  __device__ uint32_t count() const { return 1; }
  template <class C, int M>
  __device__ void sum(C (&x)[M]) {
    // Two buffers in turn: who writes one has passed the barrier after which everybody had read it.
    __shared__ C sums[2][M][kWarps];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const C of_warp = sum_across(x[m], 1);
      if (threadIdx.x % kWarpSize == 0) sums[turn_][m][threadIdx.x / kWarpSize] = of_warp;
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m) {
      x[m] = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) x[m] += sums[turn_][m][warp];
    }
    turn_ ^= 1;
  }

 private:
  int turn_ = 0;
};

/// X: x, gate and their gradients; Y: the result and its gradient. Vectors of N channels; a thread keeps
/// kHeld of them.
template <class X, class Y, int N, int kHeldVectors, bool kHasGate, class TeamOfRow>
struct Variant {
  using Input = X;
  using Result = Y;
  using Real = Arithmetic<X>;
  using Team = TeamOfRow;
  static constexpr int kVector = N, kHeld = kHeldVectors;
  static constexpr bool kGated = kHasGate;
};

/// The row of a team in one round; its width is 0 where there is none.
struct RowOfTeam {
  template <class Team>
  __device__ RowOfTeam(const Rows& rows, const Team& team, int64_t first)
      : number(first + team.index()),
        exists(number < rows.count),
        at(place_of(exists ? number : 0, rows.heads)),
        width(exists ? rows.width : 0) {}
  int64_t number;
  bool exists;
  RowPlace at;
  uint32_t width;
};

/// The first channel of a thread's vector i, and where its vectors beyond the held ones begin.
template <class V>
__device__ uint32_t channel_of(const typename V::Team& team, uint32_t i) {
  return (i * team.lanes() + team.lane()) * V::kVector;
}

/// N channels of a row of inputs, or zeros.
template <class T, int N>
__device__ Vector<T, N> load_or_zero(const T* row, uint32_t channel, uint32_t width) {
  if (channel < width) return load_once<T, N>(row + channel);
  Vector<T, N> zero;
#pragma unroll
  for (int i = 0; i < N; ++i) zero.at[i] = narrow<T>(0);
  return zero;
}

/// N weights; ones without weights.
template <class C, int N>
__device__ Vector<C, N> weights_at(const void* weight, uint32_t channel) {
  if (weight) return *reinterpret_cast<const Vector<C, N>*>(static_cast<const C*>(weight) + channel);
  Vector<C, N> one;
#pragma unroll
  for (int i = 0; i < N; ++i) one.at[i] = 1;
  return one;
}

__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }

/// Chooses who works on a row of this width and calls launch(Variant, log2_lanes); `vectors`: whether
/// 16-byte accesses reach everything.
template <class X, class Y, bool kGated, Channels kChannels, class Launch>
void with_team(bool vectors, int64_t width, const Launch& launch) {
  constexpr int N = kVectorWidth<X>, kScalars = 8;
  const auto log2_lanes = [&](int vector) {
    int log2 = 0;
    while (log2 < 5 && int64_t{vector} << log2 < width) ++log2;
    return log2;
  };
  if constexpr (sizeof(X) < sizeof(double)) {
    if (vectors && width <= kWarpSize * N)
      return launch(Variant<X, Y, N, 1, kGated, WarpTeam>(), log2_lanes(N));
    if (vectors && width <= kWarpSize * kChannels.warp)
      return launch(Variant<X, Y, N, kChannels.warp / N, kGated, WarpTeam>(), 5);
    if (vectors) return launch(Variant<X, Y, N, kChannels.block / N, kGated, BlockTeam>(), 0);
  }
  if (width <= kWarpSize * kScalars)
    return launch(Variant<X, Y, 1, kScalars, kGated, WarpTeam>(), log2_lanes(1));
  launch(Variant<X, Y, 1, kScalars, kGated, BlockTeam>(), 0);
}

/// Calls work.run<X, Y, kGated>() for the types of a call; false where no kernel has them.
template <class Work>
bool with_types(const Normalization& call, const Work& work) {
  const bool gated = call.in.gate.data != nullptr;
  const auto same = [&]<class T>(T) {
    gated ? work.template run<T, T, true>() : work.template run<T, T, false>();
    return true;
  };
  if (call.input == call.result) {
    if (call.input == Scalar::kFloat64) return same(double{});
    if (call.input == Scalar::kFloat32) return same(float{});
    if (call.input == Scalar::kBFloat16) return same(__nv_bfloat16{});
    return same(__half{});
  }
  if (gated || call.input != Scalar::kFloat32 || call.result == Scalar::kFloat64) return false;
  if (call.result == Scalar::kBFloat16)
    work.template run<float, __nv_bfloat16, false>();
  else
    work.template run<float, __half, false>();
  return true;
}

/// Runs `work`; nullptr, or why it could not.
template <class Work>
const char* launched(const Normalization& call, const Work& work) {
  if (call.width < 1 || call.width > INT32_MAX) return "the width must be 1 to 2^31 - 1";
  if (!with_types(call, work)) return "no kernel for these types";
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline Rows rows_of(const Normalization& call, int log2_lanes) {
  return {.count = call.tokens * call.heads,
          .heads = call.heads,
          .width = static_cast<uint32_t>(call.width),
          .log2_lanes = log2_lanes};
}
/// Rows that a block of the team works on at a time.
template <class Team>
int64_t rows_at_once(const Rows& rows) {
  return Team::kIsBlock ? 1 : kBlock >> rows.log2_lanes;
}

}  // namespace prism::kernels::cuda::norm
