#pragma once
// A warpgroup that prepares every second chunk for the one that advances the state:
//   -Y = -T diag(b gam) E,   P_l = lower(Gam * q k_l^T),
//   w_1 <- w_1 - sum_{l>1} diag(b) strict(Gam * E k_l^T) w_l
// and the vectors gam, dec = exp2(G_C - G) and -b gam.
#include "kernels/prism_chunk/cuda/scan_copy.cuh"

namespace prism::kernels::cuda {

template <class T, int kPanels, bool kMoreSteps, ScanPass kPass>
class ScanPrepare {
 public:
  __device__ ScanPrepare(const ScanParams& params, const ScanShared& shared, int group)
      : params_(params),
        shared_(shared),
        group_(group),
        row_(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        column_(threadIdx.x % 4 * 2) {}

  __device__ void run() {
    int turn = 0;
    for_each_job<kPanels, kPass>(params_, [&](const ScanJob& job, int64_t) {
      for (int left = job.chunks; left > 0; --left) {
        // For the other group's chunks too: a wait tells a phase from its neighbours only.
        barrier_wait(shared_.barriers.full(stage_.index), stage_.parity);
        if (turn == group_) prepare();
        turn ^= 1;
        stage_.next(shared_.layout.stages);
        work_.next(shared_.layout.works);
      }
    });
  }

 private:
  __device__ void prepare() {
    barrier_wait(shared_.barriers.used(work_.index), work_.parity ^ 1);
    const uint32_t stage = shared_.stage(stage_), work = shared_.work(work_);
    G_ = stage + shared_.layout.record() + kRecordG;
    b_ = stage + shared_.layout.record() + kRecordB;
    make_vectors();
    if constexpr (kMoreSteps) make_first_write(stage);
    if constexpr (kPass == ScanPass::kOutputs) make_scores(stage, work);
    make_reads(stage, work);
    fence_async_shared();
    warp_arrive(shared_.barriers.ready(work_.index));
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_.barriers.empty(stage_.index));
  }

  __device__ uint32_t keys(uint32_t stage, int l) const {
    return stage + shared_.layout.keys() + l * kPanels * kPanelBytes;
  }

  __device__ void make_vectors() const {
    const int i = threadIdx.x % kWarpgroupThreads;
    const uint32_t vectors = shared_.vectors(work_);
    if (i < kC) {
      const float G = shared_float(G_ + 4 * i), gam = exp2_fast(G);
      shared_store(vectors + 4 * i, __float_as_uint(gam));
      shared_store(vectors + 4 * (kC + i), __float_as_uint(exp2_fast(shared_float(G_ + 4 * (kC - 1)) - G)));
      shared_store(vectors + 4 * (2 * kC + i), __float_as_uint(-shared_float(b_ + 4 * i) * gam));
    }
    named_barrier_sync(1 + group_, kWarpgroupThreads);
  }

  /// d times Gam and a factor a row; 0 where a column is not at least `distance` before its row.
  __device__ void decay(float (&d)[32], int distance, float2 factors) const {
    const float G[2] = {shared_float(G_ + 4 * row_), shared_float(G_ + 4 * (row_ + 8))};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + column_;
      const float2 Gj = shared_float2(G_ + 4 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = row_ + 8 * r;
        const float factor = r == 0 ? factors.x : factors.y;
        float* x = d + 4 * n + 2 * r;
        x[0] = i >= j + distance ? x[0] * factor * exp2_fast(G[r] - Gj.x) : 0;
        x[1] = i >= j + 1 + distance ? x[1] * factor * exp2_fast(G[r] - Gj.y) : 0;
      }
    }
  }

  /// d = rows rows^T of two tiles of 64 tokens.
  __device__ static void gram(float (&d)[32], uint32_t rows, uint32_t columns) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4 * kPanels; ++s) {
      const uint32_t at = s / 4 * kPanelBytes + s % 4 * 32;
      Wgmma<64>::ss<T>(d, contraction_major(rows + at), contraction_major(columns + at), s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }

  __device__ void make_scores(uint32_t stage, uint32_t work) const {
#pragma unroll 1
    for (int l = 0; l < (kMoreSteps ? params_.steps : 1); ++l) {
      float P[32];
      gram(P, stage, keys(stage, l));
      decay(P, 0, {1, 1});
      store_tile<T>(work + shared_.layout.scores() + l * kPanelBytes, kC, P);
    }
  }

  __device__ void make_first_write(uint32_t stage) const {
    const uint32_t writes = stage + shared_.layout.writes();
    const float2 b = {shared_float(b_ + 4 * row_), shared_float(b_ + 4 * (row_ + 8))};
    float erased[32] = {};
#pragma unroll 1
    for (int l = 1; l < params_.steps; ++l) {
      float M[32];
      gram(M, keys(stage, 0), keys(stage, l));
      decay(M, 1, b);
      uint32_t a[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s) operand_of<T>(a[s], M, s);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Wgmma<64>::rs<T, Major::kRows>(erased, a[s],
                                       row_major(writes + l * kPanelBytes + 2048 * s, kPanelBytes), 1);
      wgmma_commit();
      wgmma_wait<0>();
      pin(erased);
    }
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const uint32_t at = writes + swizzled(row_ + 8 * (i / 2 % 2), i / 4) + 2 * column_;
      const float2 w = unpack<T>(shared_word(at));
      shared_store(at, pack<T>(w.x - erased[i], w.y - erased[i + 1]));
    }
  }

  __device__ void make_reads(uint32_t stage, uint32_t work) const {
    const uint32_t record = stage + shared_.layout.record(), scale = shared_.vectors(work_) + 4 * 2 * kC;
    uint32_t a[4][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      load_operand(a[s], record, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<T>(a[s][i]), by = shared_float2(scale + 4 * (16 * s + i / 2 * 8 + column_));
        a[s][i] = pack<T>(x.x * by.x, x.y * by.y);
      }
    }
    float Y[32 * kPanels];
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      Wgmma<64 * kPanels>::template rs<T, Major::kRows>(
          Y, a[s], row_major(keys(stage, 0) + 2048 * s, kPanelBytes), s > 0);
    wgmma_commit();
    wgmma_wait<0>();
    store_tile<T>(work, kC, Y);
  }

  const ScanParams& params_;
  const ScanShared& shared_;
  int group_, row_, column_;
  uint32_t G_ = 0, b_ = 0;
  Cursor stage_, work_;
};

}  // namespace prism::kernels::cuda
