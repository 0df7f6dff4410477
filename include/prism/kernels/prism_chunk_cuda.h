#pragma once
// prism_chunk on a Hopper GPU (sm_90a): the recurrence of prism_chunk.h with device pointers and a stream.
// Nothing here allocates or waits for the device, so calls can be captured in a CUDA graph. Repeats are
// bit-equal, and a sequence's bits do not depend on the others in the call.
#include "prism/kernels/prism_chunk.h"

struct CUstream_st;

namespace prism::kernels::cuda {

/// Tokens a chunk. Chunk-start states and the gradients' arithmetic are cut here.
inline constexpr int64_t kChunkTokens = 64;

/// dtype bf16 or fp16 (gates and states fp32), K = V of 32, 64 or 128, L = 1..4; heads a multiple of
/// key_heads.
struct PrismChunkCudaShape {
  Scalar dtype = Scalar::kBFloat16;
  int64_t tokens = 0;     ///< of all sequences, below 2^31
  int64_t sequences = 0;  ///< with `offsets` any number; without, `tokens` is cut into rows of equal length
  const int64_t* offsets =
      nullptr;  ///< device memory [sequences + 1], 0 = offsets[0] <= ... = tokens, or nullptr
  int64_t steps = 1, key_heads = 1, heads = 1, key_width = 64, value_width = 64;
  double scale = 1;
};

/// A long row of few heads is cut into segments of at least so many tokens, which run in parallel.
inline constexpr int64_t kSegmentTokens = 2048;

/// The most segments of a row: what fills the card with blocks of 64 value channels. 1: rows are never cut.
constexpr int64_t most_segments(int64_t heads, int64_t value_width) {
  const int64_t fill = 128 / (heads * ((value_width + 63) / 64));
  return fill < 3 ? 1 : fill > 16 ? 16 : fill;  // from three on they are worth their transition matrices
}

/// Matrices [K, V] a head that the forward keeps for the backward, given the chunks' count: their states and,
/// where rows may be cut, two halves of a transition matrix for every kSegmentTokens of all tokens.
template <class Int>
Int kept_states(const Int& chunks, const Int& tokens, int64_t heads, int64_t value_width) {
  if (most_segments(heads, value_width) == 1) return chunks;
  return chunks + tokens / kSegmentTokens * 2;
}

/// Whether the kernels take these sizes. Addresses in q, k, w and d_o must be multiples of 16 bytes, and so
/// must their strides.
bool prism_chunk_supports(const PrismChunkCudaShape& shape);

/// Bytes of what the forward keeps for the backward, `kept_states` of them: opaque, rounded to `dtype`, in
/// the order in which the backward reads them.
int64_t prism_chunk_states_bytes(const PrismChunkCudaShape& shape);

/// Bytes of device memory that a call needs as `workspace`, aligned to 256; contents do not matter before or
/// after.
int64_t prism_chunk_forward_workspace(const PrismChunkCudaShape& shape);
int64_t prism_chunk_backward_workspace(const PrismChunkCudaShape& shape);

/// Views, states and outputs as in prism_chunk.h; erase_read must be null. `in.b` and `in.g` have one element
/// a head (width 1). o contiguous; final_state and chunk_states may be null. Every element of the given
/// outputs is written. Asynchronous; at most three launches. Returns nullptr, or the CUDA runtime's message
/// when a launch fails.
const char* prism_chunk_forward(const PrismChunkCudaShape& shape, const PrismChunkInputs& in, void* o,
                                void* final_state, void* chunk_states, void* workspace, CUstream_st* stream);

/// Backward of the forward that wrote chunk_states. dfinal_state, out.dinitial_state may be null;
/// out.derase_read must be. Asynchronous. Returns as prism_chunk_forward does.
const char* prism_chunk_backward(const PrismChunkCudaShape& shape, const PrismChunkInputs& in,
                                 const void* chunk_states, const View& d_o, const void* dfinal_state,
                                 const PrismChunkGradients& out, void* workspace, CUstream_st* stream);

}  // namespace prism::kernels::cuda
