#pragma once
// The warps that move data: one loads stages, one fetches what comes later into the L2 cache, two store
// outputs.
#include "kernels/prism_chunk/cuda/scan.cuh"

namespace prism::kernels::cuda {

/// All lanes of a warp together.
template <ScanPass kPass>
__device__ ScanJob job_of(const ScanParams& params, int64_t id) {
  if constexpr (kPass == ScanPass::kOutputs)
    return params.segments.output_job(id, params.heads, params.slices);
  ScanJob job = params.segments.segment_job(id, params.heads, params.slices);
  job.valid = job.valid && !job.last();  // nothing comes after a last one
  return job;
}

/// Calls f(job, id) for the block's jobs in order; all lanes of a warp together.
template <ScanPass kPass, class F>
__device__ void for_each_job(const ScanParams& params, F f) {
  for (int64_t id = blockIdx.x; id < params.jobs; id += gridDim.x) {
    const ScanJob job = job_of<kPass>(params, id);
    if (job.valid) f(job, id);
  }
}

/// Where a chunk's operands begin.
struct ChunkPlace {
  int token, key_head;
  const char* record;
  __device__ ChunkPlace(const ScanParams& params, const ScanJob& job, int chunk)
      : token(job.first_token + chunk * kC),
        key_head(job.head / (params.heads / params.key_heads)),
        record(params.records + ((job.first_slot + chunk) * params.heads + job.head) * kRecordBytes) {}
};

template <int kPanels, ScanPass kPass>
class ScanLoader {
 public:
  __device__ ScanLoader(const ScanParams& params, const ScanShared& shared)
      : params_(params), shared_(shared) {}

  __device__ void run() {
    for_each_job<kPass>(params_, [&](const ScanJob& job, int64_t) {
      if (kPass == ScanPass::kOutputs && job.segment > 0) load_transitions(job);
      for (int chunk = 0; chunk < job.chunks; ++chunk) {
        load_chunk(job, chunk);
        stage_.next(shared_.layout.stages);
      }
    });
  }

 private:
  __device__ void load_chunk(const ScanJob& job, int chunk) {
    barrier_wait(shared_.barriers.empty(stage_.index), stage_.parity ^ 1);
    const int tokens = job.tokens_of(chunk);
    const bool whole = tokens == kC;
    const uint32_t full = shared_.barriers.full(stage_.index);
    if (threadIdx.x % 32 == 0) issue(job, chunk, whole ? full : shared_.barriers.tail());
    if (whole) return;
    barrier_wait(shared_.barriers.tail(), tail_parity_);
    tail_parity_ ^= 1;
    clear_tail(tokens);
    fence_async_shared();
    warp_arrive(full);
  }

  __device__ void issue(const ScanJob& job, int chunk, uint32_t barrier) const {
    const ScanLayout& layout = shared_.layout;
    const ChunkPlace at(params_, job, chunk);
    const uint32_t stage = shared_.stage(stage_);
    barrier_arrive_expect(barrier, kRecordBytes + (kQueries ? kPanels * kPanelBytes : 0) +
                                       params_.steps * (kPanels + 1) * kPanelBytes);
    for (int l = 0; l < params_.steps; ++l)
      tensor_load(stage + layout.keys() + l * kPanels * kPanelBytes, &params_.k, 0, at.token, 0, at.key_head,
                  l, barrier);
    bulk_load(stage + layout.record(), at.record, kRecordBytes, barrier);
    if (kQueries) tensor_load(stage, &params_.q, 0, at.token, 0, at.key_head, 0, barrier);
    for (int l = 0; l < params_.steps; ++l)
      tensor_load(stage + layout.writes() + l * kPanelBytes, &params_.w, 0, at.token, job.slice, job.head, l,
                  barrier);
  }

  /// Keys and writes beyond the sequence's end belong to the next one: zeros instead. Queries there reach no
  /// output.
  __device__ void clear_tail(int tokens) const {
    const uint32_t keys = shared_.stage(stage_) + shared_.layout.keys();
    const int begin = tokens * kPanelRowBytes / 16, pieces = kPanelBytes / 16;
    for (int panel = 0; panel < params_.steps * (kPanels + 1); ++panel)  // the writes follow the keys
      for (int i = begin + threadIdx.x % 32; i < pieces; i += 32)
        shared_zero_quad(keys + panel * kPanelBytes + i * 16);
  }

  /// The transition matrices of segments 1 .. segment - 1, one after the other, over the stages' memory:
  /// drained before, and again before the stages have it back.
  __device__ void load_transitions(const ScanJob& job) {
    drain(stage_, shared_.layout.stages, [&](int i) { return shared_.barriers.empty(i); });
    const SegmentLayout layout{params_.heads, params_.slices};
    const int folds = shared_.layout.folds();
    const auto empty = [&](int i) { return shared_.barriers.fold_empty(i); };
    for (int segment = 1; segment < job.segment; ++segment) {
      barrier_wait(empty(fold_.index), fold_.parity ^ 1);
      if (threadIdx.x % 32 == 0) {
        constexpr int kBytes = kPanels * kSliceBytes<kPanels>;
        const uint32_t full = shared_.barriers.fold_full(fold_.index);
        barrier_arrive_expect(full, kBytes);
        bulk_load(shared_.base + fold_.index * kBytes,
                  params_.transitions + layout.at(job.store + segment, job.head, 0), kBytes, full);
      }
      fold_.next(folds);
    }
    drain(fold_, folds, empty);
  }

  /// Until a ring of buffers is empty.
  template <class Barrier>
  __device__ static void drain(Cursor at, int size, Barrier empty) {
    for (int i = 0; i < size; ++i) {
      barrier_wait(empty(at.index), at.parity ^ 1);
      at.next(size);
    }
  }

  static constexpr bool kQueries = kPass == ScanPass::kOutputs;

  const ScanParams& params_;
  const ScanShared& shared_;
  Cursor stage_, fold_;
  int tail_parity_ = 0;
};

/// `lines` lines of every token's row, from line `first` on.
__device__ inline void fetch_rows(const Lines& view, int token, int tokens, int step, int head, int lines,
                                  int first) {
  const char* const from =
      view.data + token * view.token_stride + step * view.step_stride + head * view.head_stride + 128 * first;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < tokens * lines; i += 32)
    prefetch_line(from + i / lines * view.token_stride + i % lines * 128);
}

/// Fetches the chunks that the stages have no room for yet into the L2 cache, so that their loads wait for
/// that alone: a line a lane, past the copy engine, which has enough to do. What the slices of a head share
/// is divided between them. Where there are three stages it costs more than it saves.
template <int kPanels>
__device__ void fetch_ahead(const ScanParams& params, const ScanShared& shared) {
  if (!shared.layout.fetches()) return;
  const int ahead = shared.layout.stages, lane = threadIdx.x % 32;
  Cursor stage;
  for_each_job<ScanPass::kOutputs>(params, [&](const ScanJob& job, int64_t) {
    for (int chunk = ahead; chunk < job.chunks + ahead; ++chunk) {
      barrier_wait(shared.barriers.full(stage.index), stage.parity);
      warp_arrive(shared.barriers.empty(stage.index));
      stage.next(ahead);
      if (chunk >= job.chunks) continue;
      const ChunkPlace at(params, job, chunk);
      const int tokens = job.tokens_of(chunk);
      for (int l = 0; l < params.steps; ++l)
        params.w_lines.prefetch(at.token, tokens, l, job.head, 1, job.slice, lane);
      if (job.slice == params.slices - 1)
        for (int l = 0; l < params.steps; ++l)
          params.k_lines.prefetch(at.token, tokens, l, at.key_head, kPanels, 0, lane);
      if (job.slice > 0) continue;
      params.q_lines.prefetch(at.token, tokens, 0, at.key_head, kPanels, 0, lane);
      for (int i = lane; i < kRecordBytes / 128; i += 32) prefetch_line(at.record + 128 * i);
    }
  });
}

/// Outputs [tokens][64 channels] from the tile to memory, without those beyond the sequence's end or beyond
/// V.
template <class T, int kPanels>
__device__ void store_outputs(const ScanParams& params, const ScanShared& shared) {
  const int warp = threadIdx.x / 32 - kFirstStoreWarp, lane = threadIdx.x % 32, piece = lane % 8;
  const uint32_t tile = shared.base + shared.layout.output();
  T* const o = static_cast<T*>(params.o);
  int parity = 0;
  for_each_job<ScanPass::kOutputs>(params, [&](const ScanJob& job, int64_t) {
    const int column = job.slice * 64 + piece * 8;
    for (int chunk = 0; chunk < job.chunks; ++chunk) {
      const int tokens = job.tokens_of(chunk);
      const int64_t first = job.first_token + chunk * kC;
      barrier_wait(shared.barriers.out_full(), parity);
      for (int row = 4 * warp + lane / 8; row < kC; row += 4 * kStoreWarps) {
        if (row >= tokens || column >= params.value_width) continue;
        const uint4 x = shared_quad(tile + swizzled(row, piece));
        *reinterpret_cast<uint4*>(o + ((first + row) * params.heads + job.head) * params.value_width +
                                  column) = x;
      }
      warp_arrive(shared.barriers.out_empty());
      parity ^= 1;
    }
  });
}

}  // namespace prism::kernels::cuda
