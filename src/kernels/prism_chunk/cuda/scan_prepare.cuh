#pragma once
// Two warpgroups that prepare a chunk for the one that advances the state:
//   vectors gam and dec = exp2(G_C - G), reads -Y = -T diag(b gam) E, scores P_l = lower(Gam * q k_l^T), and
//   above L = 1 the first write w_1 <- w_1 - sum_{l>1} diag(b) strict(Gam * E k_l^T) w_l.
// The scores are the last that is needed. Which takes what is in run_first and run_second; without outputs
// there are no scores, and one warpgroup is enough.
#include "kernels/prism_chunk/cuda/scan_copy.cuh"

namespace prism::kernels::cuda {

template <class T, int kPanels, int kSteps, ScanPass kPass>
class ScanPrepare {
 public:
  __device__ ScanPrepare(const ScanParams& params, const ScanShared& shared)
      : params_(params),
        shared_(shared),
        row_(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        column_(threadIdx.x % 4 * 2) {}

  /// Without outputs it prepares alone.
  __device__ void run_first() {
    each_chunk([&](uint32_t stage, uint32_t work) {
      constexpr bool kOutputs = kPass == ScanPass::kOutputs;
      make_vectors();
      if constexpr (kSteps > 1 || !kOutputs) make_reads(stage, work);
      if constexpr (kSteps > 1 && !kOutputs) make_first_write(stage);
      announce(shared_.barriers.ready(work_.index));
      if constexpr (kOutputs) {
        make_scores(stage, work);
        announce(shared_.barriers.scored(work_.index));
      }
    });
  }

  __device__ void run_second() {
    each_chunk([&](uint32_t stage, uint32_t work) {
      if constexpr (kSteps > 1)
        make_first_write(stage);
      else
        make_reads(stage, work);
      announce(shared_.barriers.ready(work_.index));
    });
  }

 private:
  template <class F>
  __device__ void each_chunk(F f) {
    for_each_job<kPass>(params_, [&](const ScanJob& job, int64_t) {
      for (int left = job.chunks; left > 0; --left) {
        barrier_wait(shared_.barriers.full(stage_.index), stage_.parity);
        barrier_wait(shared_.barriers.used(work_.index), work_.parity ^ 1);
        const uint32_t stage = shared_.stage(stage_);
        G_ = stage + shared_.layout.record() + kRecordG;
        b_ = stage + shared_.layout.record() + kRecordB;
        f(stage, shared_.work(work_));
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_.barriers.empty(stage_.index));
        stage_.next(shared_.layout.stages);
        work_.next(shared_.layout.works);
      }
    });
  }

  /// What the thread wrote to shared memory, to those who wait.
  __device__ static void announce(uint32_t barrier) {
    fence_async_shared();
    warp_arrive(barrier);
  }

  __device__ int steps() const { return kSteps < kManySteps ? kSteps : params_.steps; }

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
    }
  }

  /// Gam and a factor a row; 0 where a column is not at least `distance` before its row. The mask goes into
  /// the exponent (exp2(-inf) = 0), and what it multiplies is finite: rows beyond the sequence's end are
  /// zeros or reach no output.
  __device__ void decays(float (&gam)[32], int distance, float2 factors) const {
    const float G0 = shared_float(G_ + 4 * row_), G1 = shared_float(G_ + 4 * (row_ + 8));
    const int before = row_ - column_ - distance;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 Gj = shared_float2(G_ + 4 * (8 * n + column_));
      float* x = gam + 4 * n;
      x[0] = factors.x * exp2_fast(8 * n <= before ? G0 - Gj.x : -INFINITY);
      x[1] = factors.x * exp2_fast(8 * n + 1 <= before ? G0 - Gj.y : -INFINITY);
      x[2] = factors.y * exp2_fast(8 * n <= before + 8 ? G1 - Gj.x : -INFINITY);
      x[3] = factors.y * exp2_fast(8 * n + 1 <= before + 8 ? G1 - Gj.y : -INFINITY);
    }
  }
  __device__ static void multiply(float (&d)[32], const float (&by)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] *= by[i];
  }

  // Products are issued, then awaited: decays are made while the tensor cores make what they multiply.

  /// d = rows columns^T, two tiles of 64 tokens.
  __device__ static void issue_gram(float (&d)[32], uint32_t rows, uint32_t columns) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4 * kPanels; ++s) {
      const uint32_t at = s / 4 * kPanelBytes + s % 4 * 32;
      Wgmma<64>::ss<T>(d, contraction_major(rows + at), contraction_major(columns + at), s > 0);
    }
    wgmma_commit();
  }

  /// d (+)= a rows, rows 64 columns of a tile.
  __device__ static void issue_product(float (&d)[32], const uint32_t (&a)[4][4], uint32_t rows, bool add) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      Wgmma<64>::rs<T, Major::kRows>(d, a[s], row_major(rows + 2048 * s, kPanelBytes), add || s > 0);
    wgmma_commit();
  }

  template <int kUnderWay>
  __device__ static void await(float (&d)[32]) {
    wgmma_wait<kUnderWay>();
    pin(d);
  }

  __device__ void make_scores(uint32_t stage, uint32_t work) const {
    const uint32_t to = work + shared_.layout.scores();
    float scores[32], gam[32];
    for (int l = 0; l < steps(); ++l) {
      issue_gram(scores, stage, keys(stage, l));
      if (l == 0) decays(gam, 0, {1, 1});
      await<0>(scores);
      multiply(scores, gam);
      store_tile<T>(to + l * kPanelBytes, kC, scores);
    }
  }

  /// T times its columns' -b gam, as an operand.
  __device__ void reads(uint32_t (&a)[4][4], uint32_t stage) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) load_operand(a[s], stage + shared_.layout.record(), s);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t column = 4 * (8 * n + column_);
      const float2 G = shared_float2(G_ + column), b = shared_float2(b_ + column);
      const float2 by = {-b.x * exp2_fast(G.x), -b.y * exp2_fast(G.y)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t& t = a[n / 2][n % 2 * 2 + r];
        const float2 x = unpack<T>(t);
        t = pack<T>(x.x * by.x, x.y * by.y);
      }
    }
  }

  /// erased (+)= diag(b) strict(Gam * E k_l^T) w_l of step l counted from 0.
  __device__ void issue_erased(float (&erased)[32], uint32_t stage, int l, float2 b) const {
    float scores[32], gam[32];
    uint32_t a[4][4];
    issue_gram(scores, keys(stage, 0), keys(stage, l));
    decays(gam, 1, b);
    await<0>(scores);
    multiply(scores, gam);
#pragma unroll
    for (int s = 0; s < 4; ++s) operand_of<T>(a[s], scores, s);
    issue_product(erased, a, stage + shared_.layout.writes() + l * kPanelBytes, l > 1);
  }

  __device__ void make_first_write(uint32_t stage) const {
    const uint32_t writes = stage + shared_.layout.writes();
    const float2 b = {shared_float(b_ + 4 * row_), shared_float(b_ + 4 * (row_ + 8))};
    float erased[32];
#pragma unroll 1
    for (int l = 1; l < steps(); ++l) {
      issue_erased(erased, stage, l, b);
      await<0>(erased);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t w[4];
      load_operand(w, writes, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<T>(w[i]);
        float* const y = erased + 8 * s + 2 * i;
        y[0] = x.x - y[0], y[1] = x.y - y[1];
      }
    }
    store_tile<T>(writes, kC, erased);
  }

  /// -Y, a panel at a time.
  __device__ void make_reads(uint32_t stage, uint32_t work) const {
    float x[32], Y[32];
    uint32_t a[4][4];
    reads(a, stage);
    issue_product(Y, a, keys(stage, 0), false);
    if constexpr (kPanels == 1) {
      await<0>(Y);
      store_tile<T>(work, kC, Y);
    } else {
      issue_product(x, a, keys(stage, 0) + kPanelBytes, false);
      await<1>(Y);
      store_tile<T>(work, kC, Y);
      await<0>(x);
      store_tile<T>(work + kPanelBytes, kC, x);
    }
  }

  const ScanParams& params_;
  const ScanShared& shared_;
  int row_, column_;
  uint32_t G_ = 0, b_ = 0;
  Cursor stage_, work_;
};

}  // namespace prism::kernels::cuda
