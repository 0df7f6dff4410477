#pragma once
// All gradients but dw_1 and dS_0, from the states at the chunks' starts, dS at their ends and Y: chunks in
// parallel. An item is a chunk of one key head; it goes through its value heads in order. Two warpgroups
// share the products: the query side makes U, dq, dw_l, the key side dk. One warp loads, a slot of shared
// memory as soon as it is free.
#include "kernels/prism_chunk/cuda/backward_key.cuh"
#include "kernels/prism_chunk/cuda/backward_query.cuh"

namespace prism::kernels::cuda {

/// One side goes through an item: step 1 of every value head, then the other steps. Where a key head has one
/// value head the compiler knows, and `sum` holds no registers before its first addend.
template <bool kRefine, bool kGrouped, class S>
__device__ __forceinline__ void item_gradients(S& side, float (&sum)[32]) {
  const int group = kGrouped ? side.group() : 1, steps = side.p.steps;
  for (int h = 0; h < group; ++h) {
    side.head = side.item().key_head * group + h;
    side.clear_tail(h == 0, true, false);
    side.first(sum);
    side.write_gates(false);
    if (kRefine) side.template release<kValues>(side.heads());
    ++side.more_heads;
    if (!kRefine || group > 1) side.release_rows();
  }
  if constexpr (kRefine)
    for (int l = 1; l < steps; ++l) {
      float step_sum[32] = {};
      for (int h = 0; h < group; ++h) {
        side.head = side.item().key_head * group + h;
        side.clear_tail(false, group > 1, true);
        side.step(sum, step_sum, l);
        side.template release<kSteps>(side.steps);
        ++side.steps;
        side.write_gates(true);
        if (group > 1 || l == steps - 1) side.release_rows();
      }
      if (!S::kQuery) side.write_key_rows(side.item(), side.p.dk, step_sum, l, steps);
    }
}

template <bool kRefine, bool kGrouped, class S>
__device__ __forceinline__ void run_side(S side) {
  while (true) {
    side.template wait<kE>(side.items);
    if (side.item().count < 0) return;
    float sum[32] = {};
    item_gradients<kRefine, kGrouped>(side, sum);
    const Item item = side.item();  // not there any more once its rows are released
    side.template release<kE>(side.items);
    side.template release<kQ>(side.items);
    side.write_key_rows(item, S::kQuery ? side.p.dq : side.p.dk, sum, 0, S::kQuery ? 1 : side.p.steps);
    ++side.items;
  }
}

template <class T, int D, bool kRefine, bool kGrouped>
__global__ void __launch_bounds__(Layout<D, kRefine>::kThreads, 1)
    chunk_gradients(const __grid_constant__ BackwardParams p) {
  extern __shared__ uint8_t dynamic[];
  const uint32_t memory = (shared_address(dynamic) + 1023) & ~1023u;
  if (threadIdx.x == 0) Block<T, D, kRefine>{p, memory}.initialise();
  __syncthreads();
  constexpr int kSide = Layout<D, kRefine>::kSideThreads;
  // Registers a thread: no more in all than the block starts with, 168 of 384 threads or 96 of 640, or the
  // side that asks last waits for ever.
  constexpr int kLoading = D == 64 ? 40 : 32, kComputing = D == 64 ? 232 : 112;
  if (threadIdx.x >= 2 * kSide) {
    registers_shrink<kLoading>();
    if (threadIdx.x < 2 * kSide + kWarpLanes) Loader<T, D, kRefine>{{p, memory}}.run();
  } else if (threadIdx.x < kSide) {
    registers_grow<kComputing>();
    run_side<kRefine, kGrouped>(QuerySide<T, D, kRefine>(p, memory));
  } else {
    registers_grow<kComputing>();
    run_side<kRefine, kGrouped>(KeySide<T, D, kRefine>(p, memory));
  }
}

template <class T, int D, bool kRefine, bool kGrouped>
const char* launch_chunks(const BackwardParams& p, CUstream_st* stream) {
  constexpr int kShared = Layout<D, kRefine>::kShared;
  const auto kernel = chunk_gradients<T, D, kRefine, kGrouped>;
  int device = 0, processors = 0;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  const int64_t items = (p.end - p.first) * p.key_heads;
  const unsigned blocks = static_cast<unsigned>(items < processors ? items : processors);
  kernel<<<blocks, Layout<D, kRefine>::kThreads, kShared, stream>>>(p);
  error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T, int D>
const char* launch_for(const BackwardParams& p, CUstream_st* stream) {
  const bool grouped = p.heads > p.key_heads;
  if (p.steps == 1)
    return grouped ? launch_chunks<T, D, false, true>(p, stream)
                   : launch_chunks<T, D, false, false>(p, stream);
  return grouped ? launch_chunks<T, D, true, true>(p, stream) : launch_chunks<T, D, true, false>(p, stream);
}

template <class T>
const char* launch_chunk_gradients(const BackwardParams& p, CUstream_st* stream) {
  return p.key_width > 64 ? launch_for<T, 128>(p, stream) : launch_for<T, 64>(p, stream);
}

}  // namespace prism::kernels::cuda
