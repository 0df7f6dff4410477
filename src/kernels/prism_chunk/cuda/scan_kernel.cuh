#pragma once
// The scan's kernel: roles and shared memory. README.md has the picture.
#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/prism_chunk/cuda/scan.h"
#include "kernels/prism_chunk/cuda/scan_advance.cuh"
#include "kernels/prism_chunk/cuda/scan_copy.cuh"
#include "kernels/prism_chunk/cuda/scan_prepare.cuh"

namespace prism::kernels::cuda {
namespace {

constexpr int kSharedLimit = 232448;

/// As many stages as fit, up to three.
ScanLayout layout_for(int steps, int panels) {
  for (int works = 2; works > 0; --works)
    for (int stages = 3; stages > works - 1; --stages) {
      const ScanLayout layout{steps, panels, stages, works};
      if (layout.bytes() <= kSharedLimit) return layout;
    }
  return {steps, panels, 1, 1};
}

__device__ void init_barriers(const ScanShared& shared, ScanPass pass) {
  const ScanBarriers& barriers = shared.barriers;
  for (int i = 0; i < shared.layout.stages; ++i) {
    barrier_init(barriers.full(i), 1);
    barrier_init(barriers.empty(i), 4 * (prepare_groups(pass) + advance_groups(pass)) +
                                        (pass == ScanPass::kOutputs && shared.layout.fetches()));
  }
  for (int i = 0; i < shared.layout.works; ++i) {
    barrier_init(barriers.ready(i), 4 * prepare_groups(pass));
    barrier_init(barriers.scored(i), 4);
    barrier_init(barriers.used(i), 4 * advance_groups(pass));
  }
  barrier_init(barriers.out_full(), 4);
  barrier_init(barriers.out_empty(), kStoreWarps);
  barrier_init(barriers.tail(), 1);
  for (int i = 0; i < kMostFolds; ++i) {
    barrier_init(barriers.fold_full(i), 1);
    barrier_init(barriers.fold_empty(i), 4);
  }
  barrier_init_fence();
}

template <class T, int kPanels, int kSteps, ScanPass kPass>
__global__ void __launch_bounds__(kScanThreads, 1)
    scan_kernel(const __grid_constant__ ScanParams params, const ScanLayout layout) {
  constexpr ScanRegisters kRegisters = scan_registers(kPass, kSteps);
  constexpr bool kOutputs = kPass == ScanPass::kOutputs;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t base = shared_address(memory);
  const ScanShared shared{layout, base, {base + layout.barriers()}};
  if (threadIdx.x == 0) {
    init_barriers(shared, kPass);
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.w);
  }
  __syncthreads();
  const int group = threadIdx.x / kWarpgroupThreads;
  if (group == 0) {
    registers_shrink<kRegisters.copy>();
    if (threadIdx.x < 32)
      ScanLoader<kPanels, kPass>(params, shared).run();
    else if (kOutputs && threadIdx.x < 64)
      fetch_ahead<kPanels>(params, shared);
    else if (kOutputs)
      store_outputs<T, kPanels>(params, shared);
  } else if (group == 1) {
    registers_shrink<kRegisters.prepare>();
    ScanPrepare<T, kPanels, kSteps, kPass>(params, shared).run_first();
  } else if (group == 2) {
    if constexpr (kOutputs) {
      registers_shrink<kRegisters.prepare>();
      ScanPrepare<T, kPanels, kSteps, kPass>(params, shared).run_second();
    } else {
      registers_grow<kRegisters.advance>();
      ScanAdvance<T, kPanels, kSteps, Advance::kState>(params, shared).run();
    }
  } else {
    registers_grow<kRegisters.advance>();
    ScanAdvance<T, kPanels, kSteps, kOutputs ? Advance::kOutputs : Advance::kMatrix>(params, shared).run();
  }
}

template <class T, int kPanels, int kSteps, ScanPass kPass>
const char* launch(const ScanParams& params, CUstream_st* stream) {
  const auto kernel = scan_kernel<T, kPanels, kSteps, kPass>;
  const ScanLayout layout = layout_for(params.steps, kPanels);
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
  if (prepared != cudaSuccess) return cudaGetErrorString(prepared);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(params.jobs, processor_count()));
  kernel<<<blocks, kScanThreads, layout.bytes(), stream>>>(params, layout);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T, ScanPass kPass>
const char* launch_for(const ScanParams& params, CUstream_st* stream) {
  const bool wide = params.key_width > 64;
  if (params.steps == 1)
    return wide ? launch<T, 2, 1, kPass>(params, stream) : launch<T, 1, 1, kPass>(params, stream);
  if (params.steps == 2)
    return wide ? launch<T, 2, 2, kPass>(params, stream) : launch<T, 1, 2, kPass>(params, stream);
  return wide ? launch<T, 2, kManySteps, kPass>(params, stream)
              : launch<T, 1, kManySteps, kPass>(params, stream);
}

}  // namespace

template <ScanPass kPass>
const char* launch_scan(const ScanParams& params, Scalar dtype, CUstream_st* stream) {
  if (params.jobs == 0) return nullptr;
  return dtype == Scalar::kBFloat16 ? launch_for<__nv_bfloat16, kPass>(params, stream)
                                    : launch_for<__half, kPass>(params, stream);
}

}  // namespace prism::kernels::cuda
