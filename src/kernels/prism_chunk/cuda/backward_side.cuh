#pragma once
// What the two sides of the chunk-parallel kernel share: decays, sums for the gates, tails, dg and db.
#include "kernels/prism_chunk/cuda/backward_block.cuh"

namespace prism::kernels::cuda {

/// The gates of a value head at this thread's rows and columns.
struct Decays {
  float row[2], b[2], to_end[2], from_start[2];
  uint32_t columns;

  __device__ Decays(uint32_t record, const Place& at) {
    const uint32_t sums = record + kRecordG;
    const float last = load_float(sums + 4 * (kChunk - 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = load_float(sums + 4 * (at.row + 8 * r));
      b[r] = load_float(record + kRecordB + 4 * (at.row + 8 * r));
      to_end[r] = exp2_fast(last - row[r]);
      from_start[r] = exp2_fast(row[r]);
    }
    columns = sums + 4 * at.column;
  }
};

/// f(element, i >= j, i > j, r, decay i to j) for each element of scores at this thread; of kBlocks blocks of
/// 8 columns.
template <int kPart = 0, int kBlocks = 8, class F>
__device__ __forceinline__ void each_score(const Decays& decays, const Place& at, F f) {
#pragma unroll
  for (int n = kPart * kBlocks; n < (kPart + 1) * kBlocks; ++n) {
    const float2 to = load_floats(decays.columns + 32 * n);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = e / 2, row = at.row + 8 * r, column = 8 * n + at.column + e % 2;
      f(4 * n + e, row >= column, row > column, r, exp2_fast(decays.row[r] - (e % 2 ? to.y : to.x)));
    }
  }
}

/// Sums of a score matrix over its columns and rows, for the gates.
struct ScoreSums {
  float row[2] = {}, column[16] = {};
  __device__ __forceinline__ void add(int element, float x) {
    row[element / 2 % 2] += x;
    column[element / 4 * 2 + element % 2] += x;
  }
  /// Over the warp's rows; two columns of each thread are left, 8 group + column of its place.
  __device__ __forceinline__ void store_columns(uint32_t to, const Place& at) {
    reduce<8>(16);
    reduce<4>(8);
    reduce<2>(4);
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 4 * (8 * at.group + at.column)),
                 "f"(column[0]), "f"(column[1])
                 : "memory");
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
/// An accumulator of D columns as parts of 64, where products make them one by one.
template <int D>
using Parts = float[D / 64][32];

template <class T, int D, bool kRefine>
struct Side : Block<T, D, kRefine> {
  using B = Block<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using B::p;
  Item item;
  int head = 0;
  const Place at;

  __device__ Side(const BackwardParams& params, uint32_t memory) : B{params, memory} {}

  __device__ static int thread() { return threadIdx.x % (kSides * kWarpgroupThreads); }
  __device__ static bool query_side() { return threadIdx.x < kWarpgroupThreads; }

  __device__ void read_item() { item = B::item(); }

  __device__ void store_sums(int row, const float (&x)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(x[r]);
      if (at.column == 0) store_float(this->sums(row) + 4 * (at.row + 8 * r), sum);
    }
  }
  /// Tokens past the sequence's end become zero rows of what this phase reads.
  __device__ void clear_tail(bool keys, bool head_rows, bool step_rows) const {
    if (item.count == kChunk) return;
    const auto clear = [&](uint32_t to, int bytes) {
      clear_rows<kSides * kWarpgroupThreads>(to, bytes, item.count, thread());
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
    named_barrier_sync(kBothSides, kSides * kWarpgroupThreads);
  }

  __device__ void release_rows() {
    this->template wait<kDStates>(this->rows);
    this->template release<kY>(this->rows);
    this->template release<kDOut>(this->rows);
    this->template release<kDStates>(this->rows);
    if (kRefine) this->template release<kRecord>(this->rows);
    ++this->rows;
  }

  /// After both sides' sums of a phase: dg, db of the head; the later phases add.
  __device__ void write_gates(bool add) const {
    named_barrier_sync(kBothSides, kSides * kWarpgroupThreads);
    if (threadIdx.x >= kWarpLanes) return;
    const int lane = threadIdx.x;
    float at_token[2], to_state[2], whole = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int offset = 4 * (2 * lane + i);
      at_token[i] = load_float(this->sums(kFromQuery) + offset) + load_float(this->sums(kFromKey) + offset);
      to_state[i] = load_float(this->sums(kToState) + offset);
      for (int w = 0; w < 8; ++w) at_token[i] -= load_float(this->sums(kColumns + w) + offset);
    }
    if (!add)
      for (int w = 0; w < 4; ++w) whole += load_float(this->sums(kWhole) + 4 * w);
    float after = at_token[0] + at_token[1], before = to_state[0] + to_state[1];
#pragma unroll
    for (int offset = 1; offset < kWarpLanes; offset *= 2) {
      const float later = __shfl_down_sync(~0u, after, offset), earlier = __shfl_up_sync(~0u, before, offset);
      if (lane + offset < kWarpLanes) after += later;
      if (lane >= offset) before += earlier;
    }
    before -= to_state[0] + to_state[1];
    const float dg[2] = {after + before + whole, after - at_token[0] + before + to_state[0] + whole};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * lane + i >= item.count) continue;
      const int64_t index = (item.token + 2 * lane + i) * p.heads + head;
      p.dg[index] = add ? p.dg[index] + dg[i] : dg[i];
      const int offset = 4 * (2 * lane + i);
      if (!add)
        p.db[index] = load_float(this->sums(kDbQuery) + offset) + load_float(this->sums(kDbKey) + offset);
    }
  }

  /// A step l >= 2 after its use in the first phase.
  __device__ void release_step() {
    if (this->step_stays()) return;
    this->template release<kSteps>(this->steps);
    ++this->steps;
  }

  __device__ void write_key_rows(void* to, const float (&d)[D / 2], int step, int steps) const {
    const int64_t stride = int64_t{steps} * p.key_heads * p.key_width;
    const int64_t offset = item.token * stride + (int64_t{step} * p.key_heads + item.key_head) * p.key_width;
    write_rows<T>(static_cast<T*>(to) + offset, stride, d, item.count, p.key_width, at);
  }
};

}  // namespace prism::kernels::cuda
