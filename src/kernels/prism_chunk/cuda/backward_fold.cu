// dS after every segment of the rows that are cut. The pass over the segments left dS before each from zeros
// after it; here, from the last to the first, dS before segment s becomes M_s^T (dS after it) + that. One
// block is 64 columns of V of one value head of one sequence, a warpgroup that holds dS^T as accumulators.
#include "kernels/prism_chunk/cuda/backward.h"
#include "kernels/prism_chunk/cuda/segment_states.cuh"

namespace prism::kernels::cuda {
namespace {

template <int D>
struct FoldShared {
  static constexpr int kPanels = D / 64, kMatrixBytes = kPanels * kSliceBytes<kPanels>;
  static constexpr int kBarriers = kMostFolds * kMatrixBytes, kBytes = kBarriers + 8 * kMostFolds + 1024;
};

template <class T, int D>
__global__ void __launch_bounds__(kWarpgroupThreads, 1)
    fold_segments(const __grid_constant__ BackwardParams p) {
  using Shared = FoldShared<D>;
  const ScanJob job = p.segments.segment_job(blockIdx.x, p.heads, Shared::kPanels);
  if (!job.valid || !job.last()) return;
  extern __shared__ uint8_t dynamic[];
  const uint32_t memory = (shared_address(dynamic) + 1023) & ~1023u;
  const SegmentLayout layout{p.heads, Shared::kPanels};
  const auto before = [&](int segment) {
    return p.segment_states + layout.at(job.store + segment, job.head, job.slice);
  };
  const auto full = [&](int segment) { return memory + Shared::kBarriers + 8 * (segment % kMostFolds); };
  const auto matrix = [&](int segment) { return memory + segment % kMostFolds * Shared::kMatrixBytes; };
  const auto load = [&](int segment) {
    if (threadIdx.x > 0 || segment < 1) return;
    barrier_arrive_expect(full(segment), Shared::kMatrixBytes);
    bulk_load(matrix(segment), p.transitions + layout.at(job.store + segment, job.head, 0),
              Shared::kMatrixBytes, full(segment));
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostFolds; ++i) barrier_init(full(i), 1);
    barrier_init_fence();
  }
  __syncthreads();
  const int last = job.segment;
  for (int i = 1; i <= kMostFolds; ++i) load(last - i);
  float dS[D / 2];
  load_accumulators(dS, before(last));
  for (int segment = last - 1; segment >= 1; --segment) {
    float next[D / 2];
    load_accumulators(next, before(segment));
    barrier_wait(full(segment), (last - 1 - segment) / kMostFolds & 1);
    fold_backward<T>(next, dS, matrix(segment));
    save_accumulators(before(segment), next);
#pragma unroll
    for (int e = 0; e < D / 2; ++e) dS[e] = next[e];
    __syncthreads();  // all have read the matrix
    load(segment - kMostFolds);
  }
}

template <class T, int D>
const char* launch(const BackwardParams& p, CUstream_st* stream) {
  const auto kernel = fold_segments<T, D>;
  if (const cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, FoldShared<D>::kBytes))
    return cudaGetErrorString(e);
  const int64_t blocks = p.segments.slots() * p.heads * (D / 64);
  kernel<<<static_cast<unsigned>(blocks), kWarpgroupThreads, FoldShared<D>::kBytes, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_segment_folds(const BackwardParams& p, Scalar dtype, CUstream_st* stream) {
  const bool wide = p.key_width > 64;
  if (dtype == Scalar::kBFloat16)
    return wide ? launch<__nv_bfloat16, 128>(p, stream) : launch<__nv_bfloat16, 64>(p, stream);
  return wide ? launch<__half, 128>(p, stream) : launch<__half, 64>(p, stream);
}

}  // namespace prism::kernels::cuda
