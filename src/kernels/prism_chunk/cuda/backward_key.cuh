#pragma once
// The key side of the chunk-parallel kernel.
#include "kernels/prism_chunk/cuda/backward_side.cuh"

namespace prism::kernels::cuda {

/// dk_l.
template <class T, int D, bool kRefine>
struct KeySide : Side<T, D, kRefine> {
  using Base = Side<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using Base::at;
  using Base::item;
  using Base::p;
  static constexpr bool kQuery = false;

  __device__ KeySide(const BackwardParams& params, uint32_t memory) : Base(params, memory) {}

  /// gam_C sum(dS * S_0), this warp's share: the two lie alike.
  __device__ __forceinline__ void sum_whole(uint32_t state, uint32_t d_state, float last) const {
    float sum = 0;
#pragma unroll 4
    for (int j = 0; j < L::kState / 16 / kWarpgroupThreads; ++j) {
      const int i = j * kWarpgroupThreads + threadIdx.x % kWarpgroupThreads;
      uint32_t x[4], y[4];
      const auto load = [i](uint32_t(&to)[4], uint32_t from) {
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from + 16 * i)
                     : "memory");
      };
      load(x, state);
      load(y, d_state);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 s = unpack<T>(x[e]), d = unpack<T>(y[e]);
        sum += s.x * d.x + s.y * d.y;
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % kWarpLanes == 0) store_float(this->sums(kWhole) + 4 * at.warp, sum * exp2_fast(last));
  }

  __device__ __forceinline__ void first(float (&dk)[D / 2]) {
    float x[D / 2], scores[32], d[32];
    const uint32_t y = this->template wait<kY>(this->rows),
                   state = this->template wait<kStates>(this->heads());
    const uint32_t e = this->template wait<kE>(this->items);
    multiply<T, D / 16>(x, AlongColumns{y}, AlongValues<D>{state}, false);
    wgmma_commit();
    multiply<T, D / 16>(scores, AlongColumns{e}, AlongColumns{e}, false);
    wgmma_commit();
    const uint32_t record = this->template wait<kRecord>(this->rows);
    const Decays decays(record, at);
    const float last = load_float(record + kRecordG + 4 * (kChunk - 1));
    wgmma_wait<1>();
    pin(x);
    const float erased[2] = {-decays.b[0] * decays.from_start[0], -decays.b[1] * decays.from_start[1]};
    ScoreSums sums;
    add_row_products<T>(sums.row, x, erased, e);
    add_scaled_rows(dk, x, erased);
    if constexpr (kRefine) {  // the query side alone reads them now
      for (int l = 1; l < p.steps && !this->step_stays(); ++l) {
        this->template wait<kSteps>(this->steps);
        this->release_step();
      }
    } else {
      this->template wait<kValues>(this->heads());
      this->template release<kValues>(this->heads());
    }
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
    wgmma_wait<0>();
    pin(scores);
    named_barrier_sync(kUReady, kSides * kWarpgroupThreads);
    multiply<T, D / 16>(d, AlongColumns{y}, AlongColumns{this->u()}, false);
    wgmma_commit();
    sum_whole(state, d_state, last);
    this->template release<kStates>(this->heads());
    wgmma_wait<0>();
    pin(d);
    float db[2] = {};
    each_score(decays, at,
               [&](int i, bool, bool below, int r, float decay) {  // d becomes -b Gam * strict(Y U^T)
                 const float read = below ? -decay * d[i] : 0;
                 db[r] += read * scores[i];
                 d[i] = decays.b[r] * read;
                 sums.add(i, d[i] * scores[i]);
               });
    if (!kRefine) this->template release<kRecord>(this->rows);
    store_tile<T>(this->n_scores(), kChunk, d);
    fence_async_shared();
    multiply<T, D / 16>(x, AlongColumns{this->u()}, AlongValues<D>{d_state}, false);
    wgmma_commit();
    named_barrier_sync(kKeySide, kWarpgroupThreads);
    wgmma_wait<0>();
    pin(x);
    float to_state[2] = {};
    add_row_products<T>(to_state, x, decays.to_end, e);
    add_scaled_rows(dk, x, decays.to_end);
    multiply<T, 4>(dk, AlongColumns{this->n_scores()}, AlongRows{e}, true);
    multiply<T, 4>(dk, AlongRows{this->n_scores()}, AlongRows{e}, true);
    wgmma_commit();
    named_barrier_sync(kQueryScores, kSides * kWarpgroupThreads);
    multiply<T, 4>(dk, AlongRows{this->d_scores()}, AlongRows{this->template wait<kQ>(this->items)}, true);
    wgmma_commit();
    this->store_sums(kFromKey, sums.row);
    this->store_sums(kToState, to_state);
    this->store_sums(kDbKey, db);
    sums.store_columns(this->sums(kColumns + 4 + at.warp), at);
    wgmma_wait<0>();
    pin(dk);
  }

  /// Columns 32 kHalf .. of M = -b strict(Gam * E k^T), which with Y makes M^T dZ, and of N = -b Gam *
  /// strict(Y w^T). Halves, because both sums of keys are in registers.
  template <int kHalf>
  __device__ __forceinline__ void read_scores(uint32_t e, uint32_t k, uint32_t y, uint32_t w,
                                              const Decays& decays, ScoreSums& sums) const {
    constexpr int kOffset = 32 * kHalf * kPanelRowBytes;
    float scores[16], d[16];
    multiply<T, D / 16>(scores, AlongColumns{e}, AlongColumns{k + kOffset}, false);
    multiply<T, D / 16>(d, AlongColumns{y}, AlongColumns{w + kOffset}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    each_score<kHalf, 4>(decays, at, [&](int i, bool, bool below, int r, float decay) {
      const float factor = below ? -decays.b[r] * decay : 0;
      d[i - 16 * kHalf] *= factor;
      sums.add(i, d[i - 16 * kHalf] * scores[i - 16 * kHalf]);
      scores[i - 16 * kHalf] *= factor;
    });
    store_columns<kHalf>(this->m_scores(), scores);
    store_columns<kHalf>(this->n_scores(), d);
  }
  template <int kHalf>
  __device__ __forceinline__ void store_columns(uint32_t to, const float (&d)[16]) const {
    const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      uint32_t a[4];
      operand_of<T>(a, d, s);
      matrix_store(to + swizzled(16 * at.warp + lane % 16, 2 * (s + 2 * kHalf) + lane / 16), a[0], a[1], a[2],
                   a[3]);
    }
  }

  /// Step l >= 2: dE += N k_l, dk_l += exp(G_C - G) (w_l dS^T) + D^T q + N^T E.
  __device__ __forceinline__ void step(float (&dk)[D / 2], float (&dk_step)[D / 2], int) {
    const uint32_t w = this->template wait<kSteps>(this->steps), k = w + L::kTile;
    const uint32_t e = this->template data<kE>(this->items), y = this->template wait<kY>(this->rows);
    const Decays decays(this->template wait<kRecord>(this->rows), at);
    ScoreSums sums;
    read_scores<0>(e, k, y, w, decays, sums);
    read_scores<1>(e, k, y, w, decays, sums);
    fence_async_shared();
    named_barrier_arrive(kReadScores, kSides * kWarpgroupThreads);
    named_barrier_sync(kKeySide, kWarpgroupThreads);
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
    uint32_t a[D / 16][4];
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
      load_operand(a[s], w + s / 4 * kTileBytes, s % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<T>(a[s][i]);
        a[s][i] = pack<T>(x.x * decays.to_end[i % 2], x.y * decays.to_end[i % 2]);
      }
    }
    multiply<T, 4>(dk, AlongColumns{this->n_scores()}, AlongRows{k}, true);
    multiply<T>(dk_step, a, AlongValues<D>{d_state}, true);
    multiply<T, 4>(dk_step, AlongRows{this->n_scores()}, AlongRows{e}, true);
    wgmma_commit();
    named_barrier_sync(kQueryScores, kSides * kWarpgroupThreads);
    multiply<T, 4>(dk_step, AlongRows{this->d_scores()}, AlongRows{this->template data<kQ>(this->items)},
                   true);
    wgmma_commit();
    this->store_sums(kFromKey, sums.row);
    sums.store_columns(this->sums(kColumns + 4 + at.warp), at);
    wgmma_wait<0>();
    pin(dk);
    pin(dk_step);
  }
};

}  // namespace prism::kernels::cuda
