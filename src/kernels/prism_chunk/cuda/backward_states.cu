// The reverse pass over the states: dS at the end of every chunk, dw_1 = Y, dS_0. One block is 64 columns of
// V of one value head of one segment of a sequence; the gradient dS^T [64, K] stays in the accumulators of
// one warpgroup from chunk to chunk, as the A operand of the next product. A second warpgroup makes the
// scores P, the gates' factors and writes Y; one thread of a third loads. Where sequences are cut, a pass
// without outputs comes first, and backward_fold.cu between the two.
#include "kernels/prism_chunk/cuda/backward.h"
#include "kernels/prism_chunk/cuda/segment_states.cuh"

namespace prism::kernels::cuda {
namespace {

constexpr int kStatesThreads = 3 * kWarpgroupThreads;
constexpr int kYBuffers = 2;
/// What one launch computes: dS before every segment but a sequence's first, from zeros after it (the last
/// one from the final state's gradient); or dS at every chunk's end and Y.
enum class StatesPass { kSegments, kChunks };
enum ScanBarrier { kFull, kReady, kEmpty, kStageBarriers };

/// Shared memory of a stage: a chunk's operands.
template <int D>
struct Stage {
  static constexpr int kCount = D == 64 ? 4 : 3, kPanels = D / 64;
  static constexpr int kQ = 0, kE = kQ + kPanels * kTileBytes, kDOut = kE + kPanels * kTileBytes,
                       kScores = kDOut + kTileBytes, kRecord = kScores + kTileBytes,
                       kFactors = kRecord + kRecordBytes, kBytes = kRecord + 10240;
  static constexpr int kLoaded = 2 * kPanels * kTileBytes + kTileBytes + kRecordBytes;
  static constexpr int kY = kCount * kBytes, kBarriers = kY + kYBuffers * kTileBytes;
  static constexpr int kShared = kBarriers + 8 * (kCount * kStageBarriers + 2 * kYBuffers) + 1024;
};

/// Factors of a chunk's tokens, [64] floats each: exp(G_C - G), scale gam, -b gam.
enum Factor { kToEnd, kFromStart, kErased };

/// What one block goes through: `chunks` chunks of a segment of a sequence, all in the window, from the last
/// one.
struct Row {
  int64_t sequence, last_slot;
  int last, chunks;  // last: of the sequence's chunks
  int store, segment, segments, head, slice;
  bool from_end, to_start;
  /// Whether it begins at the end of a segment that others follow.
  __device__ bool between() const { return from_end && segment < segments - 1; }
};

template <class T, int D, StatesPass kPass>
struct Scan {
  using S = Stage<D>;
  static constexpr bool kChunks = kPass == StatesPass::kChunks;
  const BackwardParams& p;
  const Row& row;
  uint32_t memory;

  __device__ uint32_t stage(int i) const { return memory + i % S::kCount * S::kBytes; }
  __device__ uint32_t barrier(int i, ScanBarrier which) const {
    return memory + S::kBarriers + 8 * (i % S::kCount * kStageBarriers + which);
  }
  __device__ int parity(int i) const { return i / S::kCount & 1; }
  __device__ uint32_t y(int i) const { return memory + S::kY + i % kYBuffers * kTileBytes; }
  __device__ uint32_t y_barrier(int i, bool empty) const {
    return memory + S::kBarriers + 8 * (S::kCount * kStageBarriers + i % kYBuffers * 2 + empty);
  }
  __device__ Chunk chunk(int i) const {
    const int64_t first = int64_t{row.last - i} * kChunk, left = p.schedule.length(row.sequence) - first;
    return {p.schedule.start(row.sequence) + first, static_cast<int>(left < kChunk ? left : kChunk)};
  }
  /// Of the buffers [slot of the window][head][slice].
  __device__ int64_t local(int i) const { return (row.last_slot - i - p.first) * p.heads + row.head; }

  __device__ void initialise() const {
    for (int i = 0; i < S::kCount; ++i) {
      barrier_init(barrier(i, kFull), 1);
      barrier_init(barrier(i, kReady), kWarpgroupThreads);
      barrier_init(barrier(i, kEmpty), kWarpgroupThreads);
    }
    for (int i = 0; i < kYBuffers; ++i) {
      barrier_init(y_barrier(i, false), kWarpgroupThreads);
      barrier_init(y_barrier(i, true), kWarpgroupThreads);
    }
    barrier_init_fence();
  }

  /// All chunks' operands; one thread.
  __device__ void load() const {
    const int key_head = row.head / (p.heads / p.key_heads);
    for (int i = 0; i < row.chunks; ++i) {
      const int64_t token = chunk(i).token;
      const uint32_t to = stage(i), full = barrier(i, kFull);
      if (i >= S::kCount) barrier_wait(barrier(i, kEmpty), parity(i) ^ 1);
      barrier_arrive_expect(full, S::kLoaded);
      load_rows(to + S::kE, p.k, token, key_head, 0, S::kPanels, full);
      load_rows(to + S::kQ, p.q, token, key_head, 0, S::kPanels, full);
      bulk_load(to + S::kRecord, p.records + local(i) * kRecordBytes, kRecordBytes, full);
      tensor_load(to + S::kDOut, &p.d_o, 0, static_cast<int>(token), row.slice, row.head, 0, full);
    }
  }

  __device__ void clear_tail(int i, int count) const {
    clear_rows(stage(i) + S::kQ, 2 * S::kPanels * kTileBytes + kTileBytes, count,
               threadIdx.x % kWarpgroupThreads, kWarpgroupThreads);
    fence_async_shared();
    named_barrier_sync(1, kWarpgroupThreads);
  }

  __device__ uint32_t factors(int i, Factor which) const {
    return stage(i) + S::kFactors + which * (4 * kChunk);
  }
  __device__ void make_factors(int i) const {
    const int token = threadIdx.x % kWarpgroupThreads;
    if (token >= kChunk) return;
    const uint32_t record = stage(i) + S::kRecord;
    const float g = load_float(record + kRecordG + 4 * token),
                last = load_float(record + kRecordG + 4 * (kChunk - 1));
    store_float(factors(i, kToEnd) + 4 * token, exp2_fast(last - g));
    store_float(factors(i, kFromStart) + 4 * token, p.scale * exp2_fast(g));
    store_float(factors(i, kErased) + 4 * token, -load_float(record + kRecordB + 4 * token) * exp2_fast(g));
  }

  /// P = scale lower(Gam * q E^T), rounded, into the stage.
  __device__ void make_scores(int i) const {
    const Place at;
    const uint32_t from = stage(i), sums = from + S::kRecord + kRecordG;
    float d[32];
    multiply<T, D / 16>(d, AlongColumns{from + S::kQ}, AlongColumns{from + S::kE}, false);
    wgmma_commit();
    const float g[2] = {load_float(sums + 4 * at.row), load_float(sums + 4 * at.row + 32)};
    wgmma_wait<0>();
    pin(d);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 to = load_floats(sums + 4 * (8 * n + at.column));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row + 8 * r, column = 8 * n + at.column;
        float* const x = d + 4 * n + 2 * r;
        x[0] = row >= column ? x[0] * p.scale * exp2_fast(g[r] - to.x) : 0;
        x[1] = row >= column + 1 ? x[1] * p.scale * exp2_fast(g[r] - to.y) : 0;
      }
    }
    store_tile<T>(from + S::kScores, kChunk, d);
    fence_async_shared();
  }

  /// Y of chunk i from shared memory to dw_1.
  __device__ void write_y(int i) const {
    const Chunk at = chunk(i);
    barrier_wait(y_barrier(i, false), i / kYBuffers & 1);
    const int64_t stride = int64_t{p.steps} * p.heads * p.value_width;
    T* const to = static_cast<T*>(p.dw) + at.token * stride + int64_t{row.head} * p.value_width;
#pragma unroll
    for (int j = 0; j < kTileBytes / 16 / kWarpgroupThreads; ++j) {
      const int piece = j * kWarpgroupThreads + threadIdx.x % kWarpgroupThreads, r = piece / 8;
      const int column = row.slice * 64 + piece % 8 * 8;
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(y(i) + swizzled(r, piece % 8))
                   : "memory");
      if (r < at.count && column < p.value_width) *reinterpret_cast<uint4*>(to + r * stride + column) = x;
    }
    barrier_arrive(y_barrier(i, true));
  }

  /// The second warpgroup: ahead of the first by as much as is loaded.
  __device__ void assist() const {
    constexpr int kLead = S::kCount - 1;
    for (int i = 0; i < row.chunks + kLead; ++i) {
      if (i < row.chunks) {
        barrier_wait(barrier(i, kFull), parity(i));
        if (const int count = chunk(i).count; count < kChunk) clear_tail(i, count);
        make_factors(i);
        make_scores(i);
        barrier_arrive(barrier(i, kReady));
      }
      if (kChunks && i >= kLead) write_y(i - kLead);
    }
  }

  /// dS^T rows v, columns k of the accumulators from or to [sequence][Hv][K][V] in fp32.
  template <class F>
  __device__ void each_state_element(F f) const {
    const Place at;
    const int64_t base = (row.sequence * p.heads + row.head) * p.key_width * p.value_width;
#pragma unroll
    for (int e = 0; e < D / 2; ++e) {
      const int k = e / 4 * 8 + at.column + e % 2, v = row.slice * 64 + at.row + e / 2 % 2 * 8;
      f(e, base + int64_t{k} * p.value_width + v, k < p.key_width && v < p.value_width);
    }
  }
  /// Where in a carry.
  __device__ int64_t carried() const {
    return (int64_t{row.head} * S::kPanels + row.slice) * kSliceBytes<S::kPanels>;
  }
  __device__ char* before(int segment) const {
    return p.segment_states + SegmentLayout{p.heads, S::kPanels}.at(row.store + segment, row.head, row.slice);
  }
  __device__ void load_state(float (&d)[D / 2]) const {
    if (!row.from_end) {
      load_accumulators(d, kChunks ? p.carried + carried() : before(row.segment));
    } else if (!row.between()) {
      each_state_element(
          [&](int e, int64_t index, bool inside) { d[e] = p.d_final && inside ? p.d_final[index] : 0; });
    } else if constexpr (kChunks) {
      load_accumulators(d, before(row.segment + 1));
    } else {
#pragma unroll
      for (int e = 0; e < D / 2; ++e) d[e] = 0;
    }
  }
  __device__ void store_state(const float (&d)[D / 2]) const {
    if constexpr (!kChunks) {
      save_accumulators(before(row.segment), d);
    } else if (!row.to_start) {
      save_accumulators(p.carry + carried(), d);
    } else if (p.d_initial && row.segment == 0) {
      each_state_element([&](int e, int64_t index, bool inside) {
        if (inside) p.d_initial[index] = d[e];
      });
    }
  }
  /// The rounded dS^T, in registers as an operand, to the block tile of chunk i.
  __device__ void keep_state(int i, const uint32_t (&a)[D / 16][4]) const {
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes % 4;
    uint8_t* const to =
        p.d_states + (local(i) * S::kPanels + row.slice) * (D * kPanelRowBytes) + 256 * warp + 4 * lane;
#pragma unroll
    for (int s = 0; s < D / 16; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j)  // a[r + 2 s']: rows 8 r .., k block 2 s + s'
        *reinterpret_cast<uint32_t*>(to + (2 * s + j / 2) * 1024 + j % 2 * 128) = a[s][j];
  }

  /// d (16 columns to an operand) with column j scaled by factor[j].
  __device__ __forceinline__ static void scaled_operands(uint32_t (&a)[4][4], const float (&d)[32],
                                                         uint32_t factor) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = load_floats(factor + 32 * n);
      a[n / 2][n % 2 * 2] = pack<T>(d[4 * n] * x.x, d[4 * n + 1] * x.y);
      a[n / 2][n % 2 * 2 + 1] = pack<T>(d[4 * n + 2] * x.x, d[4 * n + 3] * x.y);
    }
  }
  /// Y^T in operand form to its buffer, [token][column of V].
  __device__ __forceinline__ void keep_y(int i, const uint32_t (&a)[4][4]) const {
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes % 4;
    if (i >= kYBuffers) barrier_wait(y_barrier(i, true), i / kYBuffers - 1 & 1);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      matrix_store_transposed(y(i) + swizzled(16 * s + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2),
                              a[s][0], a[s][1], a[s][2], a[s][3]);
    barrier_arrive(y_barrier(i, false));
  }

  /// One chunk: dvalue = exp(G_C - G) (E dS) + P^T dO, Y = T^T dvalue, dS = gam_C dS + q^T (gam dO) - E^T
  /// (gam b Y); all transposed. What does not depend on Y is in flight while Y is made.
  __device__ void step(int i, float (&state)[D / 2]) const {
    const uint32_t from = stage(i), record = from + S::kRecord, pair = 4 * Place().column;
    barrier_wait(barrier(i, kReady), parity(i));
    float value[32], from_output[32];
    uint32_t a[D / 16][4], d_out[4][4], scaled[4][4];
    operands_of<T>(a, state);
    multiply<T>(value, a, AlongColumns{from + S::kE}, false);
#pragma unroll
    for (int s = 0; s < 4; ++s) load_operand_transposed(d_out[s], from + S::kDOut, s);
    multiply<T>(from_output, d_out, AlongRows{from + S::kScores}, false);
    wgmma_commit();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = load_floats(factors(i, kFromStart) + pair + 32 * n);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 o = unpack<T>(d_out[n / 2][r + n % 2 * 2]);
        scaled[n / 2][r + n % 2 * 2] = pack<T>(o.x * x.x, o.y * x.y);
      }
    }
    const float whole = exp2_fast(load_float(record + kRecordG + 4 * (kChunk - 1)));
#pragma unroll
    for (int e = 0; e < D / 2; ++e) state[e] *= whole;
    multiply<T>(state, scaled, AlongRows{from + S::kQ}, true);
    wgmma_commit();
    if constexpr (kChunks) keep_state(i, a);
    wgmma_wait<1>();
    pin(value);
    pin(from_output);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = load_floats(factors(i, kToEnd) + pair + 32 * n);
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        value[4 * n + r] = value[4 * n + r] * x.x + from_output[4 * n + r];
        value[4 * n + r + 1] = value[4 * n + r + 1] * x.y + from_output[4 * n + r + 1];
      }
    }
    operands_of<T>(d_out, value);
    multiply<T>(value, d_out, AlongRows{record + kRecordT}, false);  // Y^T
    wgmma_commit();
    wgmma_wait<0>();
    pin(value);
    pin(state);
    scaled_operands(scaled, value, factors(i, kErased) + pair);
    multiply<T>(state, scaled, AlongRows{from + S::kE}, true);
    wgmma_commit();
    if constexpr (kChunks) {
      operands_of<T>(d_out, value);
      keep_y(i, d_out);
    }
    wgmma_wait<0>();
    pin(state);
    barrier_arrive(barrier(i, kEmpty));
  }

  __device__ void scan() const {
    float state[D / 2];
    load_state(state);
    for (int i = 0; i < row.chunks; ++i) step(i, state);
    store_state(state);
  }
};

/// The block's job. Of calls whose rows are never cut, only the sequences that the window may touch have
/// blocks.
template <StatesPass kPass>
__device__ ScanJob job_of_block(const BackwardParams& p, int slices) {
  ScanJob job;
  if constexpr (kPass == StatesPass::kSegments) {
    job = p.segments.segment_job(blockIdx.x, p.heads, slices);
    job.valid = job.valid && job.segment > 0;
    return job;
  }
  int64_t id = blockIdx.x;
  if (p.segments.slots() == 0) id += p.schedule.locate(p.first, kChunk).sequence * p.heads * slices;
  if (id < p.segments.pieces() * p.heads * slices)
    job = p.segments.output_job(id, p.heads, slices);
  else
    job.valid = false;
  return job;
}

/// The part of it in the window.
template <StatesPass kPass>
__device__ Row row_of_block(const BackwardParams& p, int slices) {
  const ScanJob job = job_of_block<kPass>(p, slices);
  const int64_t begin = job.first_slot, end = begin + job.chunks;
  const int64_t first = begin > p.first ? begin : p.first, last = (end < p.end ? end : p.end) - 1;
  const bool inside = job.valid && begin < p.end;
  return {.sequence = job.sequence,
          .last_slot = last,
          .last = static_cast<int>(last - p.schedule.first_slot(job.sequence, kChunk)),
          .chunks = inside && last >= first ? static_cast<int>(last - first + 1) : 0,
          .store = job.store,
          .segment = job.segment,
          .segments = job.segments,
          .head = job.head,
          .slice = job.slice,
          .from_end = end <= p.end,
          .to_start = inside && begin >= p.first};
}

template <class T, int D, StatesPass kPass>
__global__ void __launch_bounds__(kStatesThreads, 1)
    state_gradients(const __grid_constant__ BackwardParams p) {
  extern __shared__ uint8_t dynamic[];
  const Row row = row_of_block<kPass>(p, D / 64);
  const uint32_t memory = (shared_address(dynamic) + 1023) & ~1023u;
  const Scan<T, D, kPass> scan{p, row, memory};
  if (row.chunks == 0) {  // an empty sequence hands its final gradient on; others lie in another window
    if (row.to_start && p.schedule.length(row.sequence) == 0 && threadIdx.x < kWarpgroupThreads) {
      float state[D / 2];
      scan.load_state(state);
      scan.store_state(state);
    }
    return;
  }
  if (threadIdx.x == 0) scan.initialise();
  __syncthreads();
  if (threadIdx.x < kWarpgroupThreads) {
    registers_grow<232>();
    scan.scan();
  } else if (threadIdx.x < 2 * kWarpgroupThreads) {
    registers_shrink<104>();
    scan.assist();
  } else {
    registers_shrink<24>();
    if (threadIdx.x == 2 * kWarpgroupThreads) scan.load();
  }
}

template <StatesPass kPass>
int64_t pieces_of_launch(const BackwardParams& p) {
  if (kPass == StatesPass::kSegments) return p.segments.slots();
  if (p.segments.slots() > 0) return p.segments.pieces();
  const Schedule& at = p.schedule;
  const int64_t row_slots = at.offsets ? 1 : Schedule::pieces_of(at.row_tokens, kChunk);
  const int64_t touched =
      (p.end - 1) / row_slots - p.first / row_slots + 1;  // each sequence has its own slot
  return touched < at.sequences ? touched : at.sequences;
}

template <class T, int D, StatesPass kPass>
const char* launch(const BackwardParams& p, CUstream_st* stream) {
  using S = Stage<D>;
  const auto kernel = state_gradients<T, D, kPass>;
  if (const cudaError_t e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared))
    return cudaGetErrorString(e);
  const int64_t blocks = pieces_of_launch<kPass>(p) * p.heads * (D / 64);
  kernel<<<static_cast<unsigned>(blocks), kStatesThreads, S::kShared, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <StatesPass kPass>
const char* launch_for(const BackwardParams& p, Scalar dtype, CUstream_st* stream) {
  const bool wide = p.key_width > 64;
  if (dtype == Scalar::kBFloat16)
    return wide ? launch<__nv_bfloat16, 128, kPass>(p, stream) : launch<__nv_bfloat16, 64, kPass>(p, stream);
  return wide ? launch<__half, 128, kPass>(p, stream) : launch<__half, 64, kPass>(p, stream);
}

}  // namespace

const char* launch_segment_gradients(const BackwardParams& p, Scalar dtype, CUstream_st* stream) {
  return launch_for<StatesPass::kSegments>(p, dtype, stream);
}
const char* launch_state_gradients(const BackwardParams& p, Scalar dtype, CUstream_st* stream) {
  return launch_for<StatesPass::kChunks>(p, dtype, stream);
}

}  // namespace prism::kernels::cuda
