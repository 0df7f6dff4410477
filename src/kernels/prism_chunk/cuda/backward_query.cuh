#pragma once
// The query side of the chunk-parallel kernel.
#include "kernels/prism_chunk/cuda/backward_side.cuh"

namespace prism::kernels::cuda {

/// U, dq, dw_l of l >= 2.
template <class T, int D, bool kRefine>
struct QuerySide : Side<T, D, kRefine> {
  using Base = Side<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using Base::columns;
  using Base::p;
  using Base::score_rows;
  using typename Base::Scores;
  using typename Base::Sums;
  static constexpr bool kQuery = true;

  __device__ QuerySide(const BackwardParams& params, uint32_t memory) : Base(params, memory) {}

  /// z += strict(Gam * E k_l^T) w_l for l >= 2.
  __device__ __forceinline__ void add_steps(float (&z)[32], uint32_t e) {
    for (int l = 1; l < p.steps; ++l) {
      const uint32_t w = this->template wait<kSteps>(this->steps);
      if (const int count = this->item().count; count < kChunk) {
        clear_rows(w, 2 * L::kTile, count, threadIdx.x, L::kSideThreads);
        fence_async_shared();
        this->sync_side(kQuerySide);
      }
      Scores m;
      multiply<T, D / 16>(m, AlongColumns{e}, AlongColumns{score_rows(w + L::kTile)}, false);
      wgmma_commit();
      wgmma_wait<0>();
      pin(m);
      this->each_score(this->decays(),
                       [&](int i, bool, bool below, int, float decay) { m[i] = below ? m[i] * decay : 0; });
      this->store_scores(this->p_scores(), m);
      fence_async_shared();
      this->sync_side(kQuerySide);
      multiply<T, 4>(z, AlongColumns{this->p_scores()}, AlongRows{columns(w)}, true);
      wgmma_commit();
      wgmma_wait<0>();
      pin(z);
      this->sync_side(kQuerySide);  // all have read the scores
      this->release_step();
    }
  }

  /// U = T (w_1 - b Z) into its buffer, for the key side too; db_i = -sum_v Y Z.
  __device__ __forceinline__ void make_values(float (&z)[32], const Decays& held) {
    const float minus[2] = {-1, -1};
    float db[2] = {};
    const uint32_t u = opaque(columns(this->u())), record = this->template data<kRecord>(this->rows);
    add_row_products<T>(db, z, minus, columns(this->template wait<kY>(this->rows)));
    const Decays decays = this->again(held);
    const int first_row = this->row(), count = this->item().count;
    each_pair<T, 32>(columns(this->template wait<kValues>(this->heads())), [&](int i, float2 w) {
      const int r = i / 2 % 2;
      const bool inside = first_row + 8 * r < count;
      z[i] = inside ? w.x - decays.b[r] * z[i] : 0;
      z[i + 1] = inside ? w.y - decays.b[r] * z[i + 1] : 0;
    });
    if (!kRefine) this->template release<kValues>(this->heads());
    store_tile<T>(u, kChunk, z);
    fence_async_shared();
    this->sync_warpgroup();
    multiply<T, 4>(z, AlongColumns{record + kRecordT}, AlongRows{u}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(z);
    this->sync_warpgroup();  // all have read w_1 - b Z
    store_tile<T>(u, kChunk, z);
    fence_async_shared();
    this->arrive_sides(kUReady);
    this->sync_side(kQuerySide);
    this->store_sums(kDbQuery, db);
  }

  /// D = scale Gam * lower(dO value^T) in place of `d`, from plain scores q k^T in `scores`, which become P.
  __device__ __forceinline__ void make_scores(Scores& scores, Scores& d, const Decays& decays,
                                              Sums& sums) const {
    this->each_score(this->again(decays), [&](int i, bool lower, bool below, int, float decay) {
      const float factor = lower ? p.scale * decay : 0;
      d[i] *= factor;
      sums.add(i, below ? d[i] * scores[i] : 0);
      scores[i] *= factor;
    });
    this->store_scores(this->d_scores(), d);
  }

  __device__ __forceinline__ void first(float (&dq)[32]) {
    const uint32_t e = this->template wait<kE>(this->items),
                   state = this->template wait<kStates>(this->heads());
    float x[32];
    multiply<T, D / 16>(x, AlongColumns{e}, AlongKeys{this->value_slice(state)}, false);
    wgmma_commit();
    const Decays held = this->decays();
    wgmma_wait<0>();
    pin(x);
    scale_rows(x, held.from_start);
    if constexpr (kRefine) add_steps(x, e);
    make_values(x, held);
    const uint32_t d_out = this->template wait<kDOut>(this->rows), q = this->template wait<kQ>(this->items);
    multiply<T, D / 16>(x, AlongColumns{d_out}, AlongValues<D>{this->key_blocks(state)}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(x);
    this->template release<kStates>(this->heads());
    Sums sums;
    {
      const Decays decays = this->again(held);
      const float factor[2] = {p.scale * decays.from_start[0], p.scale * decays.from_start[1]};
      add_row_products<T>(sums.row, x, factor, columns(q));
      add_scaled_rows(dq, x, factor);
    }
    Scores scores, d;
    multiply<T, D / 16>(scores, AlongColumns{q}, AlongColumns{score_rows(e)}, false);
    multiply<T, D / 16>(d, AlongColumns{d_out}, AlongColumns{score_rows(this->u())}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    make_scores(scores, d, held, sums);
    if (!kRefine) this->template release<kRecord>(this->rows);
    fence_async_shared();
    this->arrive_sides(kQueryScores);
    this->sync_side(kQuerySide);
    multiply<T, 4>(dq, AlongColumns{this->d_scores()}, AlongRows{columns(e)}, true);
    wgmma_commit();
    this->store_sums(kFromQuery, sums.row);
    sums.reduce_columns();
    sums.store_columns(this->column_sums(kQuery));
    wgmma_wait<0>();
    pin(dq);
  }

  /// Step l >= 2: dq += D k_l and dw_l = exp(G_C - G) (k_l dS) + P^T dO + M^T dZ.
  __device__ __forceinline__ void step(float (&dq)[32], float (&)[32], int step) {
    const uint32_t w = this->template wait<kSteps>(this->steps), k = w + L::kTile;
    const uint32_t q = this->template data<kQ>(this->items), d_out = this->template wait<kDOut>(this->rows);
    Scores scores, d;
    multiply<T, D / 16>(scores, AlongColumns{q}, AlongColumns{score_rows(k)}, false);
    multiply<T, D / 16>(d, AlongColumns{d_out}, AlongColumns{score_rows(w)}, false);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    pin(d);
    Sums sums;
    make_scores(scores, d, this->decays(), sums);
    this->store_scores(this->p_scores(), scores);
    fence_async_shared();
    this->arrive_sides(kQueryScores);
    this->sync_side(kQuerySide);
    this->store_sums(kFromQuery, sums.row);
    sums.reduce_columns();
    sums.store_columns(this->column_sums(kQuery));
    float x[32];
    const uint32_t d_state = this->template wait<kDStates>(this->rows);
    multiply<T, D / 16>(x, AlongColumns{k}, AlongKeys{this->value_slice(d_state)}, false);
    wgmma_commit();
    multiply<T, 4>(dq, AlongColumns{this->d_scores()}, AlongRows{columns(k)}, true);
    wgmma_commit();
    wgmma_wait<1>();
    pin(x);
    float to_state[2] = {};
    const Decays decays = this->decays();
    add_row_products<T>(to_state, x, decays.to_end, columns(w));
    scale_rows(x, decays.to_end);
    multiply<T, 4>(x, AlongRows{this->p_scores()}, AlongRows{columns(d_out)}, true);
    wgmma_commit();
    this->store_sums(kToState, to_state);
    this->sync_sides(kReadScores);
    multiply<T, 4>(x, AlongRows{this->m_scores()}, AlongRows{columns(this->template wait<kY>(this->rows))},
                   true);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dq);
    pin(x);
    const Item item = this->item();
    const int column = 64 * this->part;
    const int64_t stride = int64_t{p.steps} * p.heads * p.value_width;
    T* const to = static_cast<T*>(p.dw) + item.token * stride +
                  (int64_t{step} * p.heads + this->head) * p.value_width + column;
    write_rows<T>(to, stride, x, item.count, p.value_width - column, Place{});
  }
};

}  // namespace prism::kernels::cuda
