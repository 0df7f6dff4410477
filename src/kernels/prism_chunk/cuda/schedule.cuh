#pragma once
// Sequences cut into pieces of C tokens (chunks; segments of a long row), found on the device.
//
// A piece has a slot. With offsets, sequence n's slots start at offsets[n] / C + n: there is room, because
// ceil((y - x) / C) <= floor(y / C) - floor(x / C) + 1, the slots rise with n, and neither prefix sums nor
// the host are needed. Slots without a piece are skipped.
#include <cuda_runtime.h>

#include "prism/kernels/prism_chunk_cuda.h"

namespace prism::kernels::cuda {

struct Piece {
  int64_t sequence = 0;
  int64_t index = 0;        ///< position in the sequence
  int64_t first_token = 0;  ///< of all sequences
  int tokens = 0;           ///< 0: the slot has no piece
};

struct Schedule {
  const int64_t* offsets = nullptr;
  int64_t tokens = 0, sequences = 0, row_tokens = 0;

  __host__ __device__ static int64_t pieces_of(int64_t length, int64_t C) { return (length + C - 1) / C; }

  __host__ __device__ int64_t slots(int64_t C) const {
    return offsets ? tokens / C + sequences : sequences * pieces_of(row_tokens, C);
  }
  /// Start of sequence n in the tokens of all; n = sequences gives the end. Wrong offsets stay inside the
  /// tensors.
  __device__ int64_t start(int64_t n) const {
    if (!offsets) return n * row_tokens;
    const int64_t at = __ldg(offsets + n);
    return at < 0 ? 0 : at > tokens ? tokens : at;
  }
  __device__ int64_t length(int64_t n) const {
    const int64_t length = start(n + 1) - start(n);
    return length < 0 ? 0 : length;
  }
  __device__ int64_t first_slot(int64_t n, int64_t C) const {
    return offsets ? start(n) / C + n : n * pieces_of(row_tokens, C);
  }

  /// The piece of a slot; all lanes of a warp call it together.
  __device__ Piece locate(int64_t slot, int64_t C) const {
    Piece piece;
    piece.sequence = offsets ? last_sequence(slot, C, 1) : slot / pieces_of(row_tokens, C);
    piece.index = slot - first_slot(piece.sequence, C);
    const int64_t left = length(piece.sequence) - piece.index * C;
    piece.first_token = start(piece.sequence) + piece.index * C;
    piece.tokens = static_cast<int>(left < 0 ? 0 : left > C ? C : left);
    return piece;
  }

  /// The last sequence n with start(n) / C <= slot; all lanes of a warp call it together.
  __device__ int64_t sequence_at(int64_t slot, int64_t C) const { return last_sequence(slot, C, 0); }

 private:
  /// The last sequence n with start(n) / C + n * gap <= slot; 32 places are looked at in each round.
  __device__ int64_t last_sequence(int64_t slot, int64_t C, int64_t gap) const {
    int64_t low = 0, count = sequences;  // the answer lies in [low, low + count)
    while (count > 1) {
      const int64_t step = (count + 31) / 32, at = low + step * (threadIdx.x % 32);
      const bool before = at < low + count && start(at) / C + at * gap <= slot;
      const int last = 31 - __clz(__ballot_sync(~0u, before) | 1u);
      low += step * last;
      const int64_t left = count - step * last;
      count = left < step ? left : step;
    }
    return low;
  }
};

inline Schedule schedule_of(const PrismChunkCudaShape& shape) {
  return {shape.offsets, shape.tokens, shape.sequences, shape.sequences ? shape.tokens / shape.sequences : 0};
}

}  // namespace prism::kernels::cuda
