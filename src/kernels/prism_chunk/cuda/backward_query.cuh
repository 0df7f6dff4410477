#pragma once
// The query side of the chunk-parallel kernel.
#include "kernels/prism_chunk/cuda/backward_side.cuh"

namespace prism::kernels::cuda {

/// U, dq, dw_l of l >= 2.
template <class T, int D, bool kRefine>
struct QuerySide : Side<T, D, kRefine> {
  using Base = Side<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using Base::at;
  using Base::item;
  using Base::p;
  static constexpr bool kQuery = true;

  __device__ QuerySide(const BackwardParams& params, uint32_t memory) : Base(params, memory) {}

  /// Z = gam (E S_0) + sum_{l>=2} strict(Gam * E k_l^T) w_l.
  __device__ __forceinline__ void make_erased(Parts<D>& z, const Decays& decays) {
    const uint32_t e = this->template data<kE>(this->items);
#pragma unroll
    for (int part = 0; part < D / 64; ++part) scale_rows(z[part], decays.from_start);
    if constexpr (kRefine)
      for (int l = 1; l < p.steps; ++l) {
        const uint32_t w = this->template wait<kSteps>(this->steps);
        if (item.count < kChunk) {
          clear_rows<kWarpgroupThreads>(w, 2 * L::kTile, item.count, threadIdx.x);
          fence_async_shared();
          named_barrier_sync(kQuerySide, kWarpgroupThreads);
        }
        float m[32];
        multiply<T, D / 16>(m, AlongColumns{e}, AlongColumns{w + L::kTile}, false);
        wgmma_commit();
        wgmma_wait<0>();
        pin(m);
        each_score(decays, at,
                   [&](int i, bool, bool below, int, float decay) { m[i] = below ? m[i] * decay : 0; });
        uint32_t a[4][4];
        operands_of<T>(a, m);
#pragma unroll
        for (int part = 0; part < D / 64; ++part)
          multiply<T>(z[part], a, AlongRows{w + part * kTileBytes}, true);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int part = 0; part < D / 64; ++part) pin(z[part]);
        this->release_step();
      }
  }

  /// U = T (w_1 - b Z) into its buffer; db_i = -sum_v Y Z.
  __device__ __forceinline__ void make_values(Parts<D>& z, const Decays& decays, uint32_t record) {
    const float minus[2] = {-1, -1};
    float db[2] = {};
    const uint32_t y = this->template wait<kY>(this->rows), w = this->template wait<kValues>(this->heads());
#pragma unroll
    for (int part = 0; part < D / 64; ++part) {
      add_row_products<T>(db, z[part], minus, y + part * kTileBytes);
      each_pair<T, 32>(w + part * kTileBytes, [&](int i, float2 x) {
        const int r = i / 2 % 2;
        const bool inside = at.row + 8 * r < item.count;
        z[part][i] = inside ? x.x - decays.b[r] * z[part][i] : 0;
        z[part][i + 1] = inside ? x.y - decays.b[r] * z[part][i + 1] : 0;
      });
      store_tile<T>(this->u() + part * kTileBytes, kChunk, z[part]);
    }
    if (!kRefine) this->template release<kValues>(this->heads());
    fence_async_shared();
    named_barrier_sync(kQuerySide, kWarpgroupThreads);
#pragma unroll
    for (int part = 0; part < D / 64; ++part)
      multiply<T, 4>(z[part], AlongColumns{record + kRecordT}, AlongRows{this->u() + part * kTileBytes},
                     false);
    wgmma_commit();
    wgmma_wait<0>();
    named_barrier_sync(kQuerySide, kWarpgroupThreads);  // all have read w_1 - b Z
#pragma unroll
    for (int part = 0; part < D / 64; ++part) {
      pin(z[part]);
      store_tile<T>(this->u() + part * kTileBytes, kChunk, z[part]);
    }
    fence_async_shared();
    named_barrier_arrive(kUReady, kSides * kWarpgroupThreads);
    named_barrier_sync(kQuerySide, kWarpgroupThreads);
    this->store_sums(kDbQuery, db);
  }

  /// D = scale Gam * lower(dO value^T) in place of `d`, from plain scores q k^T in `scores`; stored for the
  /// key side. `scores` becomes P.
  __device__ __forceinline__ void make_query_scores(float (&scores)[32], float (&d)[32], const Decays& decays,
                                                    ScoreSums& sums) const {
    each_score(decays, at, [&](int i, bool lower, bool below, int, float decay) {
      const float factor = lower ? p.scale * decay : 0;
      d[i] *= factor;
      sums.add(i, below ? d[i] * scores[i] : 0);
      scores[i] *= factor;
    });
    store_tile<T>(this->d_scores(), kChunk, d);
  }

  __device__ __forceinline__ void first(float (&dq)[D / 2]) {
    const uint32_t e = this->template wait<kE>(this->items),
                   state = this->template wait<kStates>(this->heads());
    Parts<D> z;
#pragma unroll
    for (int part = 0; part < D / 64; ++part)
      multiply<T, D / 16>(z[part], AlongColumns{e}, AlongKeys{state + part * D * kPanelRowBytes}, false);
    wgmma_commit();
    const uint32_t record = this->template wait<kRecord>(this->rows);
    const Decays decays(record, at);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < D / 64; ++part) pin(z[part]);
    make_erased(z, decays);
    make_values(z, decays, record);
    const uint32_t d_out = this->template wait<kDOut>(this->rows), q = this->template wait<kQ>(this->items);
    float x[D / 2], scores[32], d[32];
    multiply<T, D / 16>(x, AlongColumns{d_out}, AlongValues<D>{state}, false);
    wgmma_commit();
    multiply<T, D / 16>(scores, AlongColumns{q}, AlongColumns{e}, false);
    wgmma_commit();
    wgmma_wait<1>();
    pin(x);
    this->template release<kStates>(this->heads());
    const float factor[2] = {p.scale * decays.from_start[0], p.scale * decays.from_start[1]};
    ScoreSums sums;
    add_row_products<T>(sums.row, x, factor, q);
    add_scaled_rows(dq, x, factor);
    multiply<T, D / 16>(d, AlongColumns{d_out}, AlongColumns{this->u()}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    make_query_scores(scores, d, decays, sums);
    if (!kRefine) this->template release<kRecord>(this->rows);
    fence_async_shared();
    named_barrier_arrive(kQueryScores, kSides * kWarpgroupThreads);
    uint32_t a[4][4];
    operands_of<T>(a, d);
    multiply<T>(dq, a, AlongRows{e}, true);
    wgmma_commit();
    this->store_sums(kFromQuery, sums.row);
    sums.store_columns(this->sums(kColumns + at.warp), at);
    wgmma_wait<0>();
    pin(dq);
  }

  /// Step l >= 2: dq += D k_l and dw_l = exp(G_C - G) (k_l dS) + P^T dO + M^T dZ.
  __device__ __forceinline__ void step(float (&dq)[D / 2], float (&)[D / 2], int step) {
    float scores[32], d[32];
    const uint32_t w = this->template wait<kSteps>(this->steps), k = w + L::kTile;
    const uint32_t q = this->template data<kQ>(this->items), d_out = this->template wait<kDOut>(this->rows);
    multiply<T, D / 16>(scores, AlongColumns{q}, AlongColumns{k}, false);
    multiply<T, D / 16>(d, AlongColumns{d_out}, AlongColumns{w}, false);
    wgmma_commit();
    const Decays decays(this->template wait<kRecord>(this->rows), at);
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    ScoreSums sums;
    make_query_scores(scores, d, decays, sums);
    store_tile<T>(this->p_scores(), kChunk, scores);
    fence_async_shared();
    named_barrier_arrive(kQueryScores, kSides * kWarpgroupThreads);
    named_barrier_sync(kQuerySide, kWarpgroupThreads);
    this->store_sums(kFromQuery, sums.row);
    sums.store_columns(this->sums(kColumns + at.warp), at);
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
    Parts<D> x;
#pragma unroll
    for (int part = 0; part < D / 64; ++part)
      multiply<T, D / 16>(x[part], AlongColumns{k}, AlongKeys{d_state + part * D * kPanelRowBytes}, false);
    wgmma_commit();
    multiply<T, 4>(dq, AlongColumns{this->d_scores()}, AlongRows{k}, true);
    wgmma_commit();
    wgmma_wait<1>();
    float to_state[2] = {};
#pragma unroll
    for (int part = 0; part < D / 64; ++part) {
      pin(x[part]);
      add_row_products<T>(to_state, x[part], decays.to_end, w + part * kTileBytes);
      scale_rows(x[part], decays.to_end);
    }
    named_barrier_sync(kReadScores, kSides * kWarpgroupThreads);
    const uint32_t y = this->template wait<kY>(this->rows);
#pragma unroll
    for (int part = 0; part < D / 64; ++part) {
      multiply<T, 4>(x[part], AlongRows{this->p_scores()}, AlongRows{d_out + part * kTileBytes}, true);
      multiply<T, 4>(x[part], AlongRows{this->m_scores()}, AlongRows{y + part * kTileBytes}, true);
    }
    wgmma_commit();
    this->store_sums(kToState, to_state);
    wgmma_wait<0>();
    pin(dq);
    const int64_t stride = int64_t{p.steps} * p.heads * p.value_width;
    T* const to =
        static_cast<T*>(p.dw) + item.token * stride + (int64_t{step} * p.heads + this->head) * p.value_width;
#pragma unroll
    for (int part = 0; part < D / 64; ++part) {
      pin(x[part]);
      write_rows<T>(to + 64 * part, stride, x[part], item.count, p.value_width - 64 * part, at);
    }
  }
};

}  // namespace prism::kernels::cuda
