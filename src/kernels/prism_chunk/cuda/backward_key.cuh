#pragma once
// The key side of the chunk-parallel kernel.
#include "kernels/prism_chunk/cuda/backward_side.cuh"

namespace prism::kernels::cuda {

/// dk_l.
template <class T, int D, bool kRefine>
struct KeySide : Side<T, D, kRefine> {
  using Base = Side<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using Base::columns;
  using Base::p;
  using Base::score_rows;
  using typename Base::Scores;
  using typename Base::Sums;
  using HalfSums = ScoreSums<Base::kBlocks / 2>;
  static constexpr bool kQuery = false;

  __device__ KeySide(const BackwardParams& params, uint32_t memory) : Base(params, memory) {}

  /// gam_C sum(dS * S_0), this warp's share: the two lie alike.
  __device__ __forceinline__ void sum_whole(uint32_t state, uint32_t d_state, float gam) const {
    constexpr int kShare = L::kState / L::kParts;
    float sum = 0;
#pragma unroll 4
    for (int j = 0; j < kShare / 16 / kWarpgroupThreads; ++j) {
      const int offset = this->part * kShare + 16 * (j * kWarpgroupThreads + threadIdx.x % kWarpgroupThreads);
      uint32_t x[4], y[4];
      load_words(x, state + offset);
      load_words(y, d_state + offset);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 s = unpack<T>(x[e]), d = unpack<T>(y[e]);
        sum += s.x * d.x + s.y * d.y;
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % kWarpLanes == 0)
      store_float(this->sums(kWhole) + 4 * (4 * this->part + this->warp()), sum * gam);
  }

  /// What the query side alone reads in the first phase.
  __device__ __forceinline__ void pass_values() {
    if constexpr (kRefine) {
      for (int l = 1; l < p.steps && !this->step_stays(); ++l) {
        this->template wait<kSteps>(this->steps);
        this->release_step();
      }
    } else {
      this->template wait<kValues>(this->heads());
      this->template release<kValues>(this->heads());
    }
  }

  /// d = Y U^T becomes N = -b Gam * strict(Y U^T), stored; db_i = -sum_j strict(Gam * Y U^T * E E^T).
  __device__ __forceinline__ void make_scores(const Scores& scores, Scores& d, const Decays& held, Sums& sums,
                                              float (&db)[2]) const {
    const Decays decays = this->again(held);
    this->each_score(decays, [&](int i, bool, bool below, int r, float decay) {
      const float read = below ? -decay * d[i] : 0;
      db[r] += read * scores[i];
      d[i] = decays.b[r] * read;
      sums.add(i, d[i] * scores[i]);
    });
    this->store_scores(this->n_scores(), d);
  }

  __device__ __forceinline__ void first(float (&dk)[32]) {
    const uint32_t y = this->template wait<kY>(this->rows),
                   state = this->template wait<kStates>(this->heads());
    const uint32_t e = this->template wait<kE>(this->items);
    float x[32];
    multiply<T, D / 16>(x, AlongColumns{y}, AlongValues<D>{this->key_blocks(state)}, false);
    wgmma_commit();
    const Decays held = this->decays();
    wgmma_wait<0>();
    pin(x);
    Sums sums;
    {
      const Decays decays = this->again(held);
      const float erased[2] = {-decays.b[0] * decays.from_start[0], -decays.b[1] * decays.from_start[1]};
      add_row_products<T>(sums.row, x, erased, columns(e));
      add_scaled_rows(dk, x, erased);
    }
    pass_values();
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
    Scores scores, d;
    multiply<T, D / 16>(scores, AlongColumns{e}, AlongColumns{score_rows(e)}, false);
    wgmma_commit();
    this->sync_sides(kUReady);
    multiply<T, D / 16>(d, AlongColumns{y}, AlongColumns{score_rows(this->u())}, false);
    wgmma_commit();
    const uint32_t last = this->template data<kRecord>(this->rows) + kRecordG + 4 * (kChunk - 1);
    sum_whole(state, d_state, exp2_fast(load_float(last)));
    this->template release<kStates>(this->heads());
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    float db[2] = {};
    make_scores(scores, d, held, sums, db);
    if (!kRefine) this->template release<kRecord>(this->rows);
    fence_async_shared();
    multiply<T, D / 16>(x, AlongColumns{this->u()}, AlongValues<D>{this->key_blocks(d_state)}, false);
    wgmma_commit();
    this->store_sums(kFromKey, sums.row);
    this->store_sums(kDbKey, db);
    sums.reduce_columns();
    sums.store_columns(this->column_sums(kQuery));
    this->sync_side(kKeySide);
    wgmma_wait<0>();
    pin(x);
    float to_state[2] = {};
    {
      const Decays decays = this->again(held);
      add_row_products<T>(to_state, x, decays.to_end, columns(e));
      add_scaled_rows(dk, x, decays.to_end);
    }
    multiply<T, 4>(dk, AlongColumns{this->n_scores()}, AlongRows{columns(e)}, true);
    multiply<T, 4>(dk, AlongRows{this->n_scores()}, AlongRows{columns(e)}, true);
    wgmma_commit();
    this->store_sums(kToState, to_state);
    this->sync_sides(kQueryScores);
    multiply<T, 4>(dk, AlongRows{this->d_scores()}, AlongRows{columns(this->template wait<kQ>(this->items))},
                   true);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dk);
  }

  /// Contraction columns 64 half .. of w_l, scaled by exp(G_C - G), times dS^T.
  __device__ __forceinline__ void add_decayed(float (&dk_step)[32], uint32_t w, uint32_t d_state, int half,
                                              const Decays& decays) const {
    uint32_t a[4][4];
    w = opaque(w);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      load_operand(a[s], w + half * kTileBytes, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<T>(a[s][i]);
        a[s][i] = pack<T>(x.x * decays.to_end[i % 2], x.y * decays.to_end[i % 2]);
      }
    }
    multiply<T>(dk_step, a, AlongValues<D>{this->key_blocks(d_state) + half * (D * kPanelRowBytes)}, true);
    wgmma_commit();
  }

  /// M = -b strict(Gam * E k^T), which with Y makes M^T dZ, and N = -b Gam * strict(Y w^T): half of this
  /// part's columns at a time, because two sums of keys are in registers.
  template <int kHalf>
  __device__ __forceinline__ void make_step_scores(uint32_t e, uint32_t k, uint32_t y, uint32_t w,
                                                   HalfSums& sums) const {
    const Decays decays = this->decays();
    constexpr int kCount = Base::kBlocks / 2, kFrom = kHalf * kCount, kRows = 8 * kFrom * kPanelRowBytes;
    float scores[4 * kCount], d[4 * kCount];
    multiply<T, D / 16>(scores, AlongColumns{e}, AlongColumns{score_rows(k) + kRows}, false);
    multiply<T, D / 16>(d, AlongColumns{y}, AlongColumns{score_rows(w) + kRows}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    this->template each_score<kFrom, kCount>(decays, [&](int i, bool, bool below, int r, float decay) {
      const float factor = below ? -decays.b[r] * decay : 0;
      d[i] *= factor;
      sums.add(i, d[i] * scores[i]);
      scores[i] *= factor;
    });
    this->template store_scores<kFrom>(this->m_scores(), scores);
    this->template store_scores<kFrom>(this->n_scores(), d);
    sums.reduce_columns();
  }

  /// Step l >= 2: dE += N k_l, dk_l += exp(G_C - G) (w_l dS^T) + D^T q + N^T E.
  __device__ __forceinline__ void step(float (&dk)[32], float (&dk_step)[32], int) {
    const uint32_t w = this->template wait<kSteps>(this->steps), k = w + L::kTile;
    const uint32_t e = this->template data<kE>(this->items), y = this->template wait<kY>(this->rows);
    HalfSums low, high;
    make_step_scores<0>(e, k, y, w, low);
    make_step_scores<1>(e, k, y, w, high);
    fence_async_shared();
    this->arrive_sides(kReadScores);
    this->sync_side(kKeySide);
    this->sync_sides(kQueryScores);
    const float rows[2] = {low.row[0] + high.row[0], low.row[1] + high.row[1]};
    this->store_sums(kFromKey, rows);
    low.store_columns(this->column_sums(kQuery));
    high.store_columns(this->column_sums(kQuery) + 16 * Base::kBlocks);
    multiply<T, 4>(dk, AlongColumns{this->n_scores()}, AlongRows{columns(k)}, true);
    multiply<T, 4>(dk_step, AlongRows{this->n_scores()}, AlongRows{columns(e)}, true);
    multiply<T, 4>(dk_step, AlongRows{this->d_scores()},
                   AlongRows{columns(this->template data<kQ>(this->items))}, true);
    wgmma_commit();
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
#pragma unroll
    for (int half = 0; half < D / 64; ++half) {
      add_decayed(dk_step, w, d_state, half, this->decays());
      wgmma_wait<0>();  // one half's operands at a time are in registers
      pin(dk);
      pin(dk_step);
    }
  }
};

}  // namespace prism::kernels::cuda
