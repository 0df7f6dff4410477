#pragma once
// Which piece of which sequence, head and value channels a block takes. Long rows of few heads are cut into
// segments that run in parallel; a sequence's cut depends on its own length and on H, K, V alone.
#include "kernels/prism_chunk/cuda/schedule.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {

struct ScanJob {
  int64_t sequence = 0;
  int64_t first_slot = 0;  ///< chunk slot of the first chunk
  int first_token = 0, tokens = 0;
  int store = 0;  ///< slot of the sequence's first segment in the segment states
  int segment = 0, segments = 1, chunks = 0, head = 0, slice = 0;
  bool valid = true;
  __device__ bool last() const { return segment == segments - 1; }
  __device__ int tokens_of(int chunk) const {
    const int left = tokens - chunk * static_cast<int>(kChunkTokens);
    return left < kChunkTokens ? left : static_cast<int>(kChunkTokens);
  }
};

struct Segments {
  Schedule schedule;
  int most = 1;  ///< segments a sequence

  /// Slots of segments: sequence n's first is start(n) / kSegmentTokens, and it has no more than length /
  /// kSegmentTokens of them. 0: no sequence is cut.
  __host__ __device__ int64_t slots() const {
    const int64_t slots = schedule.tokens / kSegmentTokens;  // fewer than three have no cut sequence
    const bool none = most == 1 || slots < 3 || (!schedule.offsets && count(schedule.row_tokens) == 1);
    return none ? 0 : slots;
  }

  __host__ __device__ int count(int64_t length) const {
    const int64_t n = length / kSegmentTokens;
    return n < 3 || most < 3 ? 1 : n < most ? static_cast<int>(n) : most;
  }

  /// Segment `segment` of sequence n.
  __device__ void cut(ScanJob& job) const {
    const int64_t begin = schedule.start(job.sequence);
    const int length = static_cast<int>(schedule.length(job.sequence)), C = static_cast<int>(kChunkTokens);
    const int chunks = (length + C - 1) / C;
    int each = chunks;
    job.segments = count(length);
    if (job.segments > 1) {
      each = (chunks + job.segments - 1) / job.segments;
      job.segments = (chunks + each - 1) / each;
    }
    const int first = job.segment * each, left = chunks - first;
    job.valid = job.segment < job.segments;
    job.chunks = !job.valid ? 0 : left < each ? left : each;
    job.first_token = static_cast<int>(begin) + first * C;
    job.tokens = length - first * C < job.chunks * C ? length - first * C : job.chunks * C;
    job.first_slot = schedule.first_slot(job.sequence, kChunkTokens) + first;
    job.store = static_cast<int>(begin / kSegmentTokens);
  }

  /// Pieces of all sequences, those that are none among them. Rows of equal length: their segments. Others:
  /// the slots, of which a sequence's first is none, and then the sequences' first segments, so that a block
  /// that takes two pieces has one of each.
  __host__ __device__ int64_t pieces() const {
    if (!schedule.offsets) return schedule.sequences * count(schedule.row_tokens);
    return slots() + schedule.sequences;
  }

  /// All lanes of a warp together.
  __device__ ScanJob output_job(int64_t id, int heads, int slices) const {
    ScanJob job;
    const int64_t piece = id / (int64_t{slices} * heads);
    job.slice = static_cast<int>(id % slices);
    job.head = static_cast<int>(id / slices % heads);
    if (!schedule.offsets) {
      const int segments = count(schedule.row_tokens);
      job.sequence = piece / segments;
      job.segment = static_cast<int>(piece % segments);
      cut(job);
    } else if (piece < slots()) {
      place(job, piece);
      job.valid = job.valid && job.segment > 0;
    } else {
      job.sequence = piece - slots();
      cut(job);
    }
    return job;
  }

  /// One segment of a cut sequence, in the order of their slots.
  __device__ ScanJob segment_job(int64_t id, int heads, int slices) const {
    ScanJob job;
    job.slice = static_cast<int>(id % slices);
    job.head = static_cast<int>(id / slices % heads);
    place(job, id / (int64_t{slices} * heads));
    job.valid = job.valid && job.segments > 1;
    return job;
  }

 private:
  __device__ void place(ScanJob& job, int64_t slot) const {
    job.sequence = schedule.sequence_at(slot, kSegmentTokens);
    job.segment = static_cast<int>(slot - schedule.start(job.sequence) / kSegmentTokens);
    cut(job);
  }
};

inline Segments segments_of(const PrismChunkCudaShape& shape) {
  return {schedule_of(shape), static_cast<int>(most_segments(shape.heads, shape.value_width))};
}

/// Where a segment's states and its transition matrix lie: for (slot, head), `slices` slices of 64 columns.
/// As many bytes for both: a state's slice is fp32 in the order of the accumulators, a matrix's is a block
/// tile of the rounded values and one of the rest.
struct SegmentLayout {
  int64_t heads;
  int slices;
  __host__ __device__ int64_t slice_bytes() const { return int64_t{64} * 64 * slices * 4; }
  __host__ __device__ int64_t bytes(int64_t slots) const { return slots * heads * slices * slice_bytes(); }
  __host__ __device__ int64_t at(int64_t slot, int64_t head, int slice) const {
    return ((slot * heads + head) * slices + slice) * slice_bytes();
  }
};

}  // namespace prism::kernels::cuda
