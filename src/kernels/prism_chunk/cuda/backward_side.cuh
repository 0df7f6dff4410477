#pragma once
// What the two sides of the chunk-parallel kernel share: decays, sums for the gates, tails, dg and db.
#include "kernels/prism_chunk/cuda/backward_block.cuh"

namespace prism::kernels::cuda {

/// The gates of a value head at this thread's rows, and where those of its score columns lie.
struct Decays {
  float row[2], b[2], to_end[2], from_start[2];
  uint32_t columns;

  __device__ Decays(uint32_t record, int first_row, int first_column) {
    const uint32_t sums = record + kRecordG;
    const float last = load_float(sums + 4 * (kChunk - 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = load_float(sums + 4 * (first_row + 8 * r));
      b[r] = load_float(record + kRecordB + 4 * (first_row + 8 * r));
      to_end[r] = exp2_fast(last - row[r]);
      from_start[r] = exp2_fast(row[r]);
    }
    columns = sums + 4 * first_column;
  }
};

/// Sums of a score matrix of 8 kBlocks columns over its columns and rows, for the gates.
template <int kBlocks>
struct ScoreSums {
  float row[2] = {}, column[2 * kBlocks] = {};
  __device__ __forceinline__ void add(int element, float x) {
    row[element / 2 % 2] += x;
    column[element / 4 * 2 + element % 2] += x;
  }
  /// Sums the columns over the warp's rows; each thread is left with its share of them in front.
  __device__ __forceinline__ void reduce_columns() {
    reduce<kBlocks>(16);
    reduce<kBlocks / 2>(8);
    if constexpr (kBlocks == 2)
      column[0] += __shfl_xor_sync(~0u, column[0], 4);
    else
      reduce<kBlocks / 4>(4);
  }
  __device__ __forceinline__ void store_columns(uint32_t to) const {
    const int lane = threadIdx.x % kWarpLanes, pair = lane % 4 * 2;
    if constexpr (kBlocks == 8) {
      store_float(to + 4 * (8 * (lane / 4) + pair), column[0]);
      store_float(to + 4 * (8 * (lane / 4) + pair + 1), column[1]);
    } else if constexpr (kBlocks == 4) {
      store_float(to + 4 * (8 * (lane / 8) + pair + lane / 4 % 2), column[0]);
    } else if (lane / 4 % 2 == 0) {
      store_float(to + 4 * (8 * (lane / 16) + pair + lane / 8 % 2), column[0]);
    }
  }

 private:
  template <int kHalf>
  __device__ __forceinline__ void reduce(int lanes) {
    const bool upper = threadIdx.x & lanes;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float other = __shfl_xor_sync(~0u, upper ? column[i] : column[i + kHalf], lanes);
      column[i] = (upper ? column[i + kHalf] : column[i]) + other;
    }
  }
};

template <int R>
__device__ __forceinline__ void scale_rows(float (&d)[R], const float (&factor)[2]) {
#pragma unroll
  for (int e = 0; e < R; ++e) d[e] *= factor[e / 2 % 2];
}
template <int R>
__device__ __forceinline__ void add_scaled_rows(float (&sum)[R], const float (&d)[R],
                                                const float (&factor)[2]) {
#pragma unroll
  for (int e = 0; e < R; ++e) sum[e] += factor[e / 2 % 2] * d[e];
}

/// One warpgroup of a side.
template <class T, int D, bool kRefine>
struct Side : Block<T, D, kRefine> {
  using B = Block<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using B::p;
  static constexpr int kBlocks = L::kScoreColumns / 8;
  using Scores = float[L::kScoreColumns / 2];
  using Sums = ScoreSums<kBlocks>;
  int head = 0;
  const int part = threadIdx.x / kWarpgroupThreads % L::kParts;

  __device__ Side(const BackwardParams& params, uint32_t memory) : B{params, memory} {}

  __device__ static int warp() { return thread_anew() / kWarpLanes % 4; }
  __device__ static int row() {
    const int thread = thread_anew();
    return thread / kWarpLanes % 4 * 16 + thread % kWarpLanes / 4;
  }
  __device__ static int column() { return 2 * (thread_anew() % 4); }

  /// This part of a matrix in panels: its 64 columns, or its score columns' rows.
  __device__ uint32_t columns(uint32_t matrix) const { return matrix + part * kTileBytes; }
  __device__ uint32_t score_rows(uint32_t matrix) const {
    return matrix + part * (L::kScoreColumns * kPanelRowBytes);
  }
  __device__ uint32_t value_slice(uint32_t state) const { return state + part * (D * kPanelRowBytes); }
  __device__ uint32_t key_blocks(uint32_t state) const { return state + part * 8192; }

  __device__ Decays decays() const {
    return Decays(this->template wait<kRecord>(this->rows), row(), part * L::kScoreColumns + column());
  }
  /// With several steps registers are short: read anew instead of held.
  __device__ __forceinline__ Decays again(const Decays& held) const { return kRefine ? decays() : held; }
  /// f(element, i >= j, i > j, r, decay i to j) for each element of blocks kFrom .. of this part of scores.
  template <int kFrom = 0, int kCount = kBlocks, class F>
  __device__ __forceinline__ void each_score(const Decays& decays, F f) const {
    const int distance = row() - part * L::kScoreColumns - column();
    const uint32_t columns = opaque(decays.columns);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float2 to = load_floats(columns + 32 * (kFrom + n));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2, below = distance + 8 * r - 8 * (kFrom + n) - e % 2;
        f(4 * n + e, below >= 0, below > 0, r, exp2_fast(decays.row[r] - (e % 2 ? to.y : to.x)));
      }
    }
  }
  /// Blocks kFrom .. of this part of a score matrix, rounded.
  template <int kFrom = 0, int R>
  __device__ __forceinline__ void store_scores(uint32_t to, const float (&d)[R]) const {
    const int lane = threadIdx.x % kWarpLanes;
    to = opaque(to);
#pragma unroll
    for (int s = 0; s < R / 8; ++s) {
      uint32_t a[4];
      operand_of<T>(a, d, s);
      const int piece = part * kBlocks + kFrom + 2 * s + lane / 16;
      matrix_store(to + swizzled(16 * warp() + lane % 16, piece), a[0], a[1], a[2], a[3]);
    }
  }
  __device__ void sync_warpgroup() const {
    named_barrier_sync(kWarpgroup + threadIdx.x / kWarpgroupThreads, kWarpgroupThreads);
  }
  __device__ static void sync_side(int barrier) { named_barrier_sync(barrier, L::kSideThreads); }
  /// One side arrives, the other one waits.
  __device__ static void sync_sides(int barrier) { named_barrier_sync(barrier, 2 * L::kSideThreads); }
  __device__ static void arrive_sides(int barrier) { named_barrier_arrive(barrier, 2 * L::kSideThreads); }

  __device__ void store_sums(int sum_row, const float (&x)[2]) const {
    const uint32_t to = opaque(this->sums(sum_row + part)) + 4 * row();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(x[r]);
      if (column() == 0) store_float(to + 32 * r, sum);
    }
  }
  /// Where a warp of a side puts the column sums of its part.
  __device__ uint32_t column_sums(bool query) const {
    return this->sums(kColumns + 4 * !query + warp()) + part * (4 * L::kScoreColumns);
  }
  /// Tokens past the sequence's end become zero rows of what this phase reads.
  __device__ void clear_tail(bool keys, bool head_rows, bool step_rows) const {
    const int count = this->item().count;
    if (count == kChunk) return;
    const auto clear = [&](uint32_t to, int bytes) {
      clear_rows(to, bytes, count, threadIdx.x, 2 * L::kSideThreads);
    };
    if (keys) {
      clear(this->template wait<kE>(this->items), L::kTile);
      clear(this->template wait<kQ>(this->items), L::kTile);
    }
    if (head_rows) {
      clear(this->template wait<kY>(this->rows), L::kTile);
      clear(this->template wait<kDOut>(this->rows), L::kTile);
    }
    if (step_rows) clear(this->template wait<kSteps>(this->steps), 2 * L::kTile);
    fence_async_shared();
    sync_sides(kBothSides);
  }

  __device__ void release_rows() {
    this->template wait<kDStates>(this->rows);
    this->template release<kY>(this->rows);
    this->template release<kDOut>(this->rows);
    this->template release<kDStates>(this->rows);
    if (kRefine) this->template release<kRecord>(this->rows);
    ++this->rows;
  }

  __device__ float sum_of_parts(int row, int offset) const {
    float sum = 0;
    for (int i = 0; i < L::kParts; ++i) sum += load_float(this->sums(row + i) + offset);
    return sum;
  }
  /// After both sides' sums of a phase: dg, db of the head; the later phases add.
  __device__ void write_gates(bool add) const {
    sync_sides(kBothSides);
    if (threadIdx.x >= kWarpLanes) return;
    const int lane = threadIdx.x;
    float at_token[2], to_state[2], whole = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int offset = 4 * (2 * lane + i);
      at_token[i] = sum_of_parts(kFromQuery, offset) + sum_of_parts(kFromKey, offset);
      to_state[i] = sum_of_parts(kToState, offset);
      for (int w = 0; w < 8; ++w) at_token[i] -= load_float(this->sums(kColumns + w) + offset);
    }
    if (!add)
      for (int w = 0; w < 4 * L::kParts; ++w) whole += load_float(this->sums(kWhole) + 4 * w);
    float after = at_token[0] + at_token[1], before = to_state[0] + to_state[1];
#pragma unroll
    for (int offset = 1; offset < kWarpLanes; offset *= 2) {
      const float later = __shfl_down_sync(~0u, after, offset), earlier = __shfl_up_sync(~0u, before, offset);
      if (lane + offset < kWarpLanes) after += later;
      if (lane >= offset) before += earlier;
    }
    before -= to_state[0] + to_state[1];
    const Item item = this->item();
    const float dg[2] = {after + before + whole, after - at_token[0] + before + to_state[0] + whole};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * lane + i >= item.count) continue;
      const int64_t index = (item.token + 2 * lane + i) * p.heads + head;
      p.dg[index] = add ? p.dg[index] + dg[i] : dg[i];
      const int offset = 4 * (2 * lane + i);
      if (!add) p.db[index] = sum_of_parts(kDbQuery, offset) + sum_of_parts(kDbKey, offset);
    }
  }

  /// A step l >= 2 after its use in the first phase.
  __device__ void release_step() {
    if (this->step_stays()) return;
    this->template release<kSteps>(this->steps);
    ++this->steps;
  }

  /// This part of rows of dq or dk_l.
  __device__ void write_key_rows(const Item& item, void* to, const float (&d)[32], int step,
                                 int steps) const {
    const int64_t stride = int64_t{steps} * p.key_heads * p.key_width;
    const int64_t offset = item.token * stride + (int64_t{step} * p.key_heads + item.key_head) * p.key_width;
    write_rows<T>(static_cast<T*>(to) + offset + 64 * part, stride, d, item.count, p.key_width - 64 * part,
                  Place{});
  }
};

}  // namespace prism::kernels::cuda
