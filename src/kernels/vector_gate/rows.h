#pragma once
// How a call is cut into independent pieces of work.
#include "kernels/common/chunks.h"
#include "prism/kernels/vector_gate.h"

namespace prism::kernels {

/// The chunk length in use: the caller's, or the kernel's choice.
inline int64_t chunk_of(const VectorGateShape& shape) {
  return shape.chunk > 0 ? shape.chunk : vector_gate_chunk_length(shape);
}

/// One value head of one sequence.
struct GateForwardRow {
  int64_t sequence, head, chunk, first_chunk;
  void *o, *final_state, *chunk_states;
};

/// All value heads that share one key head of one sequence.
struct GateBackwardRow {
  int64_t sequence, key_head, chunk, first_chunk;
  const void* chunk_states;
  const View* d_o;
  const void* dfinal_state;
  const VectorGateGradients* out;
};

/// What a token does to the state: only writes; erases with its write key (u is taken out of the value);
/// erases with a key of its own; only writes, and is read along the values.
enum class GateMode { kPlain, kShared, kSeparate, kValues };

inline GateMode mode_of(const VectorGateShape& shape, const VectorGateInputs& in) {
  if (shape.read_values) return GateMode::kValues;
  if (!in.erases()) return GateMode::kPlain;
  return in.erase_key.data ? GateMode::kSeparate : GateMode::kShared;
}

/// Calls f with the mode and the padded key width (16, 32 or 64) as compile-time constants.
template <class F>
void with_mode_and_width(GateMode mode, int64_t key_width, F f) {
  const auto with_width = [&](auto m) {
    if (key_width <= 16) return f(m, std::integral_constant<int64_t, 16>());
    if (key_width <= 32) return f(m, std::integral_constant<int64_t, 32>());
    return f(m, std::integral_constant<int64_t, 64>());
  };
  switch (mode) {
    case GateMode::kPlain:
      return with_width(std::integral_constant<GateMode, GateMode::kPlain>());
    case GateMode::kShared:
      return with_width(std::integral_constant<GateMode, GateMode::kShared>());
    case GateMode::kSeparate:
      return with_width(std::integral_constant<GateMode, GateMode::kSeparate>());
    case GateMode::kValues:
      return with_width(std::integral_constant<GateMode, GateMode::kValues>());
  }
}

}  // namespace prism::kernels
