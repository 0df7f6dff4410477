#pragma once
// The warps that move data: one loads stages, three store outputs.
#include "kernels/prism_chunk/cuda/scan.cuh"

namespace prism::kernels::cuda {

/// All lanes of a warp together.
template <int kPanels, ScanPass kPass>
__device__ ScanJob job_of(const ScanParams& params, int64_t id) {
  if constexpr (kPass == ScanPass::kOutputs)
    return params.segments.output_job(id, params.heads, params.slices);
  return params.segments.transition_job(id, params.heads, params.slices, kPanels);
}

/// Calls f(job, id) for the block's jobs in order; all lanes of a warp together.
template <int kPanels, ScanPass kPass, class F>
__device__ void for_each_job(const ScanParams& params, F f) {
  for (int64_t id = blockIdx.x; id < params.jobs; id += gridDim.x) {
    const ScanJob job = job_of<kPanels, kPass>(params, id);
    if (job.valid) f(job, id);
  }
}

/// The steps that a job writes with. A transition matrix has no writes: w_1 is read as zeros, for what all
/// jobs have in common.
__device__ inline int steps_of(const ScanParams& params, const ScanJob& job) {
  return job.transition ? 1 : params.steps;
}

template <int kPanels, ScanPass kPass>
class ScanLoader {
 public:
  __device__ ScanLoader(const ScanParams& params, const ScanShared& shared)
      : params_(params), shared_(shared) {}

  __device__ void run() {
    for_each_job<kPanels, kPass>(params_, [&](const ScanJob& job, int64_t) {
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
    if (threadIdx.x % 32 == 0) {
      issue(job, chunk, whole ? full : shared_.barriers.tail());
      if (shared_.layout.stages < 3 && chunk + 1 < job.chunks) prefetch(job, chunk + 1);
    }
    if (whole) return;
    barrier_wait(shared_.barriers.tail(), tail_parity_);
    tail_parity_ ^= 1;
    clear_tail(tokens);
    fence_async_shared();
    warp_arrive(full);
  }

  /// Where a chunk's operands begin. The writes of a slice of the transition matrix are columns that w does
  /// not have: the engine fills in zeros.
  struct Place {
    int token, key_head, slice, steps;
    const char* record;
  };
  __device__ Place place(const ScanJob& job, int chunk) const {
    const int64_t record = (job.first_slot + chunk) * params_.heads + job.head;
    return {.token = static_cast<int>(job.first_token) + chunk * kC,
            .key_head = job.head / (params_.heads / params_.key_heads),
            .slice = job.transition ? params_.slices : job.slice,
            .steps = steps_of(params_, job),
            .record = params_.records + record * kRecordBytes};
  }

  __device__ void issue(const ScanJob& job, int chunk, uint32_t barrier) const {
    const ScanLayout& layout = shared_.layout;
    const Place at = place(job, chunk);
    const uint32_t stage = shared_.stage(stage_);
    barrier_arrive_expect(barrier, kRecordBytes + (kQueries ? kPanels * kPanelBytes : 0) +
                                       at.steps * (kPanels + 1) * kPanelBytes);
    for (int l = 0; l < at.steps; ++l)
      tensor_load(stage + layout.keys() + l * kPanels * kPanelBytes, &params_.k, 0, at.token, 0, at.key_head,
                  l, barrier);
    bulk_load(stage + layout.record(), at.record, kRecordBytes, barrier);
    if (kQueries) tensor_load(stage, &params_.q, 0, at.token, 0, at.key_head, 0, barrier);
    for (int l = 0; l < at.steps; ++l)
      tensor_load(stage + layout.writes() + l * kPanelBytes, &params_.w, 0, at.token, at.slice, job.head, l,
                  barrier);
  }

  /// Where there are few stages, so that their loads wait for the L2 cache alone. What the slices of a head
  /// share is the first one's to fetch. With three stages it costs the copy engine more than it saves.
  __device__ void prefetch(const ScanJob& job, int chunk) const {
    const Place at = place(job, chunk);
    for (int l = 0; l < at.steps; ++l) tensor_prefetch(&params_.w, 0, at.token, at.slice, job.head, l);
    if (job.slice > 0) return;
    for (int l = 0; l < at.steps; ++l) tensor_prefetch(&params_.k, 0, at.token, 0, at.key_head, l);
    bulk_prefetch(at.record, kRecordBytes);
    if (kQueries) tensor_prefetch(&params_.q, 0, at.token, 0, at.key_head, 0);
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

  /// The transition matrices of segments 1 .. segment - 1, one after the other, over the stages' memory,
  /// which has to be drained first.
  __device__ void load_transitions(const ScanJob& job) {
    Cursor each = stage_;
    for (int i = 0; i < shared_.layout.stages; ++i) {
      barrier_wait(shared_.barriers.empty(each.index), each.parity ^ 1);
      each.next(shared_.layout.stages);
    }
    const SegmentLayout layout{params_.heads, params_.slices, kPanels};
    for (int segment = 1; segment < job.segment; ++segment) {
      if (threadIdx.x % 32 == 0) {
        const int bytes = static_cast<int>(layout.slice_bytes());
        barrier_arrive_expect(shared_.barriers.fold_full(), kPanels * bytes);
        for (int p = 0; p < kPanels; ++p)
          bulk_load(shared_.base + p * bytes,
                    params_.segment_states + layout.at(job.store + segment, job.head, params_.slices + p),
                    bytes, shared_.barriers.fold_full());
      }
      barrier_wait(shared_.barriers.fold_empty(), fold_parity_);
      fold_parity_ ^= 1;
    }
  }

  static constexpr bool kQueries = kPass == ScanPass::kOutputs;

  const ScanParams& params_;
  const ScanShared& shared_;
  Cursor stage_;
  int tail_parity_ = 0, fold_parity_ = 0;
};

/// Outputs [tokens][64 channels] from the tile to memory, without those beyond the sequence's end or beyond
/// V.
template <class T, int kPanels>
__device__ void store_outputs(const ScanParams& params, const ScanShared& shared) {
  const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32, piece = lane % 8;
  const uint32_t tile = shared.base + shared.layout.output();
  T* const o = static_cast<T*>(params.o);
  int parity = 0;
  for_each_job<kPanels, ScanPass::kOutputs>(params, [&](const ScanJob& job, int64_t) {
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
