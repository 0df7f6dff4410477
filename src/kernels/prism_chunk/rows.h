#pragma once
// How a call is cut into independent pieces of work.
#include "kernels/common/chunks.h"
#include "prism/kernels/prism_chunk.h"

namespace prism::kernels {

/// The chunk length in use: the caller's, or the kernel's choice.
inline int64_t chunk_of(const PrismChunkShape& shape) {
  return shape.chunk > 0 ? shape.chunk : prism_chunk_length(shape);
}

/// One value head of one sequence, columns [column, column + columns) of its values.
struct ForwardRow {
  int64_t sequence, head, column, columns, chunk, first_chunk;
  void *o, *final_state, *chunk_states;
};

/// All value heads that share one key head of one sequence.
struct BackwardRow {
  int64_t sequence, key_head, chunk, first_chunk;
  const void* chunk_states;
  const View* d_o;
  const void* dfinal_state;
  const PrismChunkGradients* out;
};

}  // namespace prism::kernels
