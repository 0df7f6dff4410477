#pragma once
// Which piece of which sequence, head and value channels a block takes. Long rows of few heads are cut into
// segments that run in parallel; a sequence's cut depends on its own length and on H, K, V alone.
#include "kernels/prism_chunk/cuda/schedule.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {

/// The least tokens a segment; also what a segment's slot in the workspace stands for.
inline constexpr int64_t kSegmentTokens = 2048;

struct ScanJob {
  int64_t sequence = 0, first_token = 0;
  int64_t first_slot = 0;  ///< chunk slot of the first chunk
  int64_t store = 0;       ///< slot of the sequence's first segment in the segment states
  int segment = 0, segments = 1, chunks = 0, head = 0, slice = 0;
  int64_t tokens = 0;
  bool valid = true;
  /// The slice is 64 columns of the transition matrix: no writes, starts from the identity.
  bool transition = false;
  __device__ bool last() const { return segment == segments - 1; }
  __device__ int tokens_of(int chunk) const {
    const int64_t left = tokens - int64_t{chunk} * kChunkTokens;
    return static_cast<int>(left < kChunkTokens ? left : kChunkTokens);
  }
};

struct Segments {
  Schedule schedule;
  int most = 1;  ///< segments a sequence

  /// Segments are worth their transition matrices from three on.
  static int most_for(int64_t heads, int64_t slices) {
    const int64_t fill = 128 / (heads * slices);
    return fill < 3 ? 1 : fill > 16 ? 16 : static_cast<int>(fill);
  }
  /// Slots of segments: sequence n's first is start(n) / kSegmentTokens, and it has no more than length /
  /// kSegmentTokens of them.
  __host__ __device__ int64_t slots() const {
    const bool none = most == 1 || (!schedule.offsets && count(schedule.row_tokens) == 1);
    return none ? 0 : schedule.tokens / kSegmentTokens;
  }

  __host__ __device__ int count(int64_t length) const {
    const int64_t n = length / kSegmentTokens;
    return n < 3 || most < 3 ? 1 : n < most ? static_cast<int>(n) : most;
  }

  /// Segment `segment` of sequence n.
  __device__ void cut(ScanJob& job) const {
    const int64_t begin = schedule.start(job.sequence), length = schedule.length(job.sequence);
    const int64_t chunks = Schedule::pieces_of(length, kChunkTokens);
    int64_t each = chunks;
    job.segments = count(length);
    if (job.segments > 1) {
      each = Schedule::pieces_of(chunks, job.segments);
      job.segments = static_cast<int>(Schedule::pieces_of(chunks, each));
    }
    const int64_t first = job.segment * each, left = chunks - first;
    job.valid = job.segment < job.segments;
    job.chunks = job.valid ? static_cast<int>(left < each ? left : each) : 0;
    job.first_token = begin + first * kChunkTokens;
    job.tokens = length - first * kChunkTokens;
    if (job.tokens > int64_t{job.chunks} * kChunkTokens) job.tokens = int64_t{job.chunks} * kChunkTokens;
    job.first_slot = schedule.first_slot(job.sequence, kChunkTokens) + first;
    job.store = begin / kSegmentTokens;
  }

  /// All lanes of a warp together. Pieces: the sequences' first segments, then the slots of further ones.
  __device__ ScanJob output_job(int64_t id, int heads, int slices) const {
    ScanJob job;
    const int64_t piece = id / (int64_t{slices} * heads);
    job.slice = static_cast<int>(id % slices);
    job.head = static_cast<int>(id / slices % heads);
    if (piece < schedule.sequences) {
      job.sequence = piece;
      cut(job);
    } else {
      place(job, piece - schedule.sequences);
      job.valid = job.valid && job.segment > 0;
    }
    return job;
  }

  /// The states' jobs come first, then those of the transition matrices, which are shorter: a block that
  /// takes every so-manieth job gets some of both. A first segment has no matrix: its state is known. A last
  /// one needs nothing.
  __device__ ScanJob transition_job(int64_t id, int heads, int slices, int key_slices) const {
    ScanJob job;
    const int64_t states = slots() * heads * slices;
    job.transition = id >= states;
    const int64_t own = job.transition ? id - states : id;
    const int each = job.transition ? key_slices : slices;
    job.slice = static_cast<int>(own % each);
    job.head = static_cast<int>(own / each % heads);
    place(job, own / (int64_t{each} * heads));
    job.valid = job.valid && !job.last() && !(job.transition && job.segment == 0);
    return job;
  }

 private:
  __device__ void place(ScanJob& job, int64_t slot) const {
    job.sequence = schedule.sequence_at(slot, kSegmentTokens);
    job.segment = static_cast<int>(slot - schedule.start(job.sequence) / kSegmentTokens);
    cut(job);
  }
};

/// Segment states: for (slot, head), `slices` slices of the state, fp32 in the order of the accumulators,
/// then K / 64 slices of the transition matrix, each a block tile of its rounded value and one of the rest.
struct SegmentLayout {
  int64_t heads;
  int slices, panels;
  __host__ __device__ int64_t slice_bytes() const { return int64_t{64} * 64 * panels * 4; }
  __host__ __device__ int64_t bytes(int64_t slots) const {
    return slots * heads * (slices + panels) * slice_bytes();
  }
  __host__ __device__ int64_t at(int64_t slot, int64_t head, int slice) const {
    return ((slot * heads + head) * (slices + panels) + slice) * slice_bytes();
  }
};

}  // namespace prism::kernels::cuda
