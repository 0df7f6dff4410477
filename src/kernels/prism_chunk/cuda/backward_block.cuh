#pragma once
// The block of the chunk-parallel kernel (backward_chunks.cuh): what lies where in shared memory, and the
// warp that loads it.
#include "kernels/prism_chunk/cuda/backward.h"

namespace prism::kernels::cuda {

/// What is loaded. kSteps: w_l, and behind it k_l, of a step l >= 2.
enum Slot { kE, kQ, kY, kDOut, kValues, kStates, kDStates, kRecord, kSteps, kSlots };
/// Named barriers; 0 is __syncthreads, 1 .. 4 are the warpgroups' own.
enum Sync { kWarpgroup = 1, kQuerySide = 5, kKeySide, kUReady, kQueryScores, kReadScores, kBothSides };
/// Sums a token, [64] floats a part each; then the column sums of the sides' warps and the shares of `whole`.
enum Sums {
  kFromQuery = 0,
  kFromKey = 2,
  kToState = 4,
  kDbQuery = 6,
  kDbKey = 8,
  kColumns = 10,
  kWhole = 18,
  kSumRows
};

template <int D, bool kRefine>
struct Layout {
  static constexpr int kPanels = D / 64, kTile = kPanels * kTileBytes, kState = 2 * D * D;
  /// Warpgroups a side: each takes 64 of the D columns, and as large a part of the columns of scores.
  static constexpr int kParts = D / 64, kScoreColumns = kChunk / kParts;
  static constexpr int kSideThreads = kParts * kWarpgroupThreads,
                       kThreads = 2 * kSideThreads + kWarpgroupThreads;
  __host__ __device__ static constexpr int bytes(int slot) {
    return slot == kSteps                        ? (kRefine ? 2 * kTile : 0)
           : slot == kRecord                     ? 9216
           : slot == kStates || slot == kDStates ? kState
                                                 : kTile;
  }
  /// Slots that the next chunk needs first have room for two where it fits.
  __host__ __device__ static constexpr int depth(int slot) {
    return D == 64 || (!kRefine && (slot == kE || slot == kY)) ? 2 : 1;
  }
  __host__ __device__ static constexpr int offset(int slot) {
    int sum = 0;
    for (int i = 0; i < slot; ++i) sum += bytes(i) * depth(i);
    return sum;
  }
  /// U: with several steps over w_1.
  static constexpr int kU = offset(kSlots), kScores = kU + (kRefine ? 0 : kTile);
  static constexpr int kSums = kScores + (kRefine ? 4 : 2) * kTileBytes,
                       kItems = kSums + kSumRows * kChunk * 4;
  static constexpr int kBarriers = kItems + 2 * 32, kShared = kBarriers + kSlots * 32 + 1024;
  static_assert(kShared <= 232448);
};

/// One item as the loading warp found it; count < 0 ends the work.
struct Item {
  int64_t token;
  int count, key_head;
};

template <class T, int D, bool kRefine>
struct Block {
  using L = Layout<D, kRefine>;
  const BackwardParams& p;
  const uint32_t memory;
  int items = 0, rows = 0;        // loads of each kind that are over: E and q; Y, dO, dS and the records;
  int more_heads = 0, steps = 0;  // S and w_1, where they differ from the rows; steps l >= 2

  __device__ int heads() const { return kRefine ? more_heads : rows; }
  /// Whether the one step l = 2 stays where it is from the first phase to the second.
  __device__ bool step_stays() const { return p.steps == 2 && p.heads == p.key_heads; }

  __device__ int group() const { return p.heads / p.key_heads; }
  template <int kSlot>
  __device__ uint32_t data(int use) const {
    return memory + L::offset(kSlot) + use % L::depth(kSlot) * L::bytes(kSlot);
  }
  template <int kSlot>
  __device__ uint32_t barrier(int use, bool empty) const {
    return memory + L::kBarriers + kSlot * 32 + use % L::depth(kSlot) * 16 + empty * 8;
  }
  template <int kSlot>
  __device__ static int parity(int use) {
    return use / L::depth(kSlot) & 1;
  }
  template <int kSlot>
  __device__ uint32_t wait(int use) const {
    barrier_wait(barrier<kSlot>(use, false), parity<kSlot>(use));
    return data<kSlot>(use);
  }
  /// Once a warp, after its last use.
  template <int kSlot>
  __device__ void release(int use) const {
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) barrier_arrive(barrier<kSlot>(use, true));
  }
  __device__ uint32_t item_address(int use) const { return memory + L::kItems + use % 2 * 32; }
  __device__ uint32_t sums(int row) const { return memory + L::kSums + row * (4 * kChunk); }
  __device__ uint32_t u() const { return kRefine ? data<kValues>(heads()) : memory + L::kU; }
  /// Score matrices of 64x64: D, N; with several steps also M and P.
  __device__ uint32_t d_scores() const { return memory + L::kScores; }
  __device__ uint32_t n_scores() const { return memory + L::kScores + kTileBytes; }
  __device__ uint32_t m_scores() const { return memory + L::kScores + 2 * kTileBytes; }
  __device__ uint32_t p_scores() const { return memory + L::kScores + 3 * kTileBytes; }

  __device__ void initialise() const {
    for (int i = 0; i < kSlots * 4; i += 2) {
      barrier_init(memory + L::kBarriers + 8 * i, 1);
      barrier_init(memory + L::kBarriers + 8 * i + 8, 2 * L::kSideThreads / kWarpLanes);
    }
    barrier_init_fence();
  }
  __device__ Item item() const {
    const uint32_t at = item_address(items);
    Item item;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(item.token) : "r"(at) : "memory");
    item.count = static_cast<int>(load_word(at + 8));
    item.key_head = static_cast<int>(load_word(at + 12));
    return item;
  }
};

// The loading warp.

template <class T, int D, bool kRefine>
struct Loader : Block<T, D, kRefine> {
  using B = Block<T, D, kRefine>;
  using L = Layout<D, kRefine>;
  using B::p;

  /// Waits until the slot is free and announces `bytes`.
  template <int kSlot>
  __device__ uint32_t claim(int use, int bytes) const {
    if (use >= L::depth(kSlot))
      barrier_wait(this->template barrier<kSlot>(use, true), B::template parity<kSlot>(use) ^ 1);
    barrier_arrive_expect(this->template barrier<kSlot>(use, false), bytes);
    return this->template barrier<kSlot>(use, false);
  }
  template <int kSlot>
  __device__ void load_tile(int use, const CUtensorMap& map, int64_t token, int head) const {
    const uint32_t full = claim<kSlot>(use, L::kTile);
    load_rows(this->template data<kSlot>(use), map, token, head, 0, L::kPanels, full);
  }
  __device__ void load_step(int64_t token, int head, int key_head, int step) {
    const uint32_t full = claim<kSteps>(this->steps, 2 * L::kTile),
                   to = this->template data<kSteps>(this->steps);
    load_rows(to, p.w, token, head, step, L::kPanels, full);
    load_rows(to + L::kTile, p.k, token, key_head, step, L::kPanels, full);
    ++this->steps;
  }
  __device__ void load_record(int64_t local) const {
    const uint32_t full = claim<kRecord>(this->rows, kRecordBytes);
    bulk_load(this->template data<kRecord>(this->rows), p.records + local * kRecordBytes, kRecordBytes, full);
  }
  __device__ void load_d_state(int64_t local) const {
    const uint32_t full = claim<kDStates>(this->rows, L::kState);
    bulk_load(this->template data<kDStates>(this->rows), p.d_states + local * L::kState, L::kState, full);
  }
  __device__ void load_state(int64_t slot, int head) const {
    const uint32_t full = claim<kStates>(this->heads(), L::kState);
    bulk_load(this->template data<kStates>(this->heads()), p.states + (slot * p.heads + head) * L::kState,
              L::kState, full);
  }

  __device__ void load_item(int64_t slot, const Item& item) {
    const int group = this->group();
    const int64_t local = (slot - p.first) * p.heads;
    load_tile<kE>(this->items, p.k, item.token, item.key_head);
    for (int h = item.key_head * group; h < (item.key_head + 1) * group; ++h) {
      load_tile<kY>(this->rows, p.y, item.token, h);
      load_tile<kValues>(this->heads(), p.w, item.token, h);
      load_record(local + h);
      load_state(slot, h);
      if (h == item.key_head * group) load_tile<kQ>(this->items, p.q, item.token, item.key_head);
      load_tile<kDOut>(this->rows, p.d_o, item.token, h);
      load_d_state(local + h);
      ++this->rows;
      ++this->more_heads;
      if (kRefine)
        for (int l = 1; l < p.steps; ++l) load_step(item.token, h, item.key_head, l);
    }
    if (kRefine)
      for (int l = 1; l < p.steps; ++l)
        for (int h = item.key_head * group; h < (item.key_head + 1) * group; ++h) {
          if (!this->step_stays()) load_step(item.token, h, item.key_head, l);
          if (group == 1) continue;
          load_tile<kY>(this->rows, p.y, item.token, h);
          load_record(local + h);
          load_tile<kDOut>(this->rows, p.d_o, item.token, h);
          load_d_state(local + h);
          ++this->rows;
        }
    ++this->items;
  }

  __device__ void announce(const Item& item) const {
    if (this->items >= L::depth(kE))
      barrier_wait(this->template barrier<kE>(this->items, true), B::template parity<kE>(this->items) ^ 1);
    const uint32_t at = this->item_address(this->items);
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(at), "l"(item.token) : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at + 8), "r"(item.count), "r"(item.key_head)
                 : "memory");
  }

  __device__ void run() {
    const int64_t count = (p.end - p.first) * p.key_heads;
    const bool loads = threadIdx.x % kWarpLanes == 0;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
      const int64_t slot = p.first + i / p.key_heads;
      const Piece piece = p.schedule.locate(slot, kChunk);
      if (piece.tokens == 0) continue;
      const Item item{piece.first_token, piece.tokens, static_cast<int>(i % p.key_heads)};
      if (loads) {
        announce(item);
        load_item(slot, item);
      }
      __syncwarp();
    }
    if (!loads) return;
    announce({0, -1, 0});
    barrier_arrive(this->template barrier<kE>(this->items, false));
  }
};

}  // namespace prism::kernels::cuda
