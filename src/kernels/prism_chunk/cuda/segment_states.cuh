#pragma once
// The states and transition matrices of segments (segments.cuh), between a warpgroup's accumulators and
// memory, and how they are folded. A state is held transposed, S^T [64 channels of V, K].
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/segments.cuh"

namespace prism::kernels::cuda {

/// Folds in flight: matrices in the memory of the stages, which nobody needs before the state is known.
inline constexpr int kMostFolds = 2;

/// A slice, fp32 in the order of the accumulators.
template <int R>
__device__ void save_accumulators(char* slice, const float (&S)[R]) {
  float4* const to = reinterpret_cast<float4*>(slice) + threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < R; i += 4) to[i / 4 * kWarpgroupThreads] = {S[i], S[i + 1], S[i + 2], S[i + 3]};
}
template <int R>
__device__ void load_accumulators(float (&S)[R], const char* slice) {
  const float4* const from = reinterpret_cast<const float4*>(slice) + threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < R; i += 4) {
    const float4 x = from[i / 4 * kWarpgroupThreads];
    S[i] = x.x, S[i + 1] = x.y, S[i + 2] = x.z, S[i + 3] = x.w;
  }
}

/// x and y rounded to T, and what that leaves over: 16 bits of each together.
template <class T>
__device__ void split(uint32_t& high, uint32_t& low, float x, float y) {
  high = pack<T>(x, y);
  const float2 rounded = unpack<T>(high);
  low = pack<T>(x - rounded.x, y - rounded.y);
}

/// Bytes of one slice of a rounded matrix, and of the slice with its rest.
template <int kPanels>
inline constexpr int kHalfBytes = 64 * 64 * kPanels * 2;
template <int kPanels>
inline constexpr int kSliceBytes = 2 * kHalfBytes<kPanels>;

/// The state that came of the identity's columns 64 slice .. is those columns of M: element [v][k] is
/// M[k][v].
template <class T, int R>
__device__ void save_transition(char* slice, const float (&S)[R]) {
  uint32_t* const to = reinterpret_cast<uint32_t*>(slice) + threadIdx.x / 32 % 4 * 64 + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < R; i += 2) {
    uint32_t high, low;
    split<T>(high, low, S[i], S[i + 1]);
    uint32_t* const at = to + i / 4 * 256 + i / 2 % 2 * 32;
    at[0] = high;
    at[kHalfBytes<R / 32> / 4] = low;
  }
}

/// `next` += S^T M^T (the forward: S <- M S + R), the matrix in shared memory, its slices one after the
/// other. Both factors are split in two, so that the product keeps 16 bits.
template <class T, int R>
__device__ void fold_forward(float (&next)[R], const float (&S)[R], uint32_t matrix) {
  constexpr int kPanels = R / 32, kSlices = 4 * kPanels;
  uint32_t a[kSlices][4], rest[kSlices][4];
#pragma unroll
  for (int i = 0; i < R; i += 2) split<T>(a[i / 8][i / 2 % 4], rest[i / 8][i / 2 % 4], S[i], S[i + 1]);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    const uint32_t at = matrix + s / 4 * kSliceBytes<kPanels> + s % 4 * 256;
    const uint64_t high = block_row_major(at, 128, 1024),
                   low = block_row_major(at + kHalfBytes<kPanels>, 128, 1024);
    Wgmma<64 * kPanels>::template rs<T, Major::kRows>(next, a[s], high, 1);
    Wgmma<64 * kPanels>::template rs<T, Major::kRows>(next, a[s], low, 1);
    Wgmma<64 * kPanels>::template rs<T, Major::kRows>(next, rest[s], high, 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(next);
}

/// `next` += dS^T M (the backward: dS <- M^T dS + R), the same matrix.
template <class T, int R>
__device__ void fold_backward(float (&next)[R], const float (&dS)[R], uint32_t matrix) {
  constexpr int kPanels = R / 32, kSlices = 4 * kPanels;
  uint32_t a[kSlices][4], rest[kSlices][4];
#pragma unroll
  for (int i = 0; i < R; i += 2) split<T>(a[i / 8][i / 2 % 4], rest[i / 8][i / 2 % 4], dS[i], dS[i + 1]);
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    float(&columns)[32] = reinterpret_cast<float(&)[32]>(next[32 * p]);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      const uint32_t at = matrix + p * kSliceBytes<kPanels> + s * 2048;
      const uint64_t high = block_contraction_major(at, 1024, 128),
                     low = block_contraction_major(at + kHalfBytes<kPanels>, 1024, 128);
      Wgmma<64>::template rs<T>(columns, a[s], high, 1);
      Wgmma<64>::template rs<T>(columns, a[s], low, 1);
      Wgmma<64>::template rs<T>(columns, rest[s], high, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(columns);
  }
}

}  // namespace prism::kernels::cuda
