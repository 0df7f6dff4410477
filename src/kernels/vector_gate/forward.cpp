// One row at a time, chunk after chunk; the state stays in the thread's first-level cache.
#include "kernels/common/targets.h"
#include "kernels/vector_gate/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_gate/forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/vector_gate/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct GateForwardBuffers {
  GateForwardBuffers(Carver& memory, const GateSizes<T>& z)
      : tokens(memory, z),
        state(memory.take<T>(z.state_size)),
        state_t(memory.take<T>(z.state_t_size)),
        out(memory.take<T>(z.output_size)) {}
  TokenRows<T> tokens;
  T* state;    // [K, V]
  T* state_t;  // [V, K], where values are read
  T* out;      // [C, V], or [C, K] where values are read
};

/// A read along the values: every row v of the transposed state takes its own way, S_v = a S_v + w_v k, and
/// adds q_v S_v to the outputs.
template <int64_t kWidth, class T>
HWY_NOINLINE void run_value_reads(const GateSizes<T>& z, int64_t c, const TokenRows<T>& at, T* state_t,
                                  T* out) {
  constexpr int64_t kVectors = kWidth / lanes<T>();
  const Tag<T> d;
  std::fill_n(out, c * kWidth, T(0));
  for (int64_t v = 0; v < z.V; ++v) {
    T* const row = state_t + v * kWidth;
    hn::Vec<Tag<T>> s[kVectors];
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) s[i] = hn::Load(d, row + i * lanes<T>());
    for (int64_t t = 0; t < c; ++t) {
      const auto w = hn::Set(d, at.w[t * z.v_row + v]), q = hn::Set(d, at.q_values[t * z.v_row + v]);
      PRISM_UNROLL
      for (int64_t i = 0; i < kVectors; ++i) {
        const T* const token = at.keys + t * kKeyFields * kWidth + i * lanes<T>();
        T* const to = out + t * kWidth + i * lanes<T>();
        s[i] = hn::MulAdd(w, hn::Load(d, token + kK * kWidth),
                          hn::Mul(hn::Load(d, token + kDecay * kWidth), s[i]));
        hn::Store(hn::MulAdd(q, s[i], hn::Load(d, to)), d, to);
      }
    }
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) hn::Store(s[i], d, row + i * lanes<T>());
  }
}

template <GateMode kMode, int64_t kWidth, class T>
HWY_INLINE void run_chunk(const GateSizes<T>& z, int64_t c, const GateForwardBuffers<T>& at) {
  if constexpr (kMode == GateMode::kValues) {
    to_rows_of_values(z, at.state, at.state_t);
    run_value_reads<kWidth>(z, c, at.tokens, at.state_t, at.out);
    to_rows_of_keys(z, at.state_t, at.state);
  } else {
    run_tokens<kMode, true>(z, c, at.tokens, at.state, at.out);
  }
}

template <GateMode kMode, int64_t kWidth, class Storage>
void forward_row_as(const VectorGateShape& shape, const VectorGateInputs& in, const GateForwardRow& row) {
  using T = RealOf<Storage>;
  const GateSizes<T> z(shape, row.chunk, kWidth);
  const auto at = buffers_of_thread<GateForwardBuffers<T>>(z);
  const int64_t width = shape.output_width(), out_row = shape.read_values ? z.k_row : z.v_row;
  const auto state_at = [&](auto* states, int64_t index) {
    return states ? states + (index * shape.heads + row.head) * z.K * z.V : nullptr;
  };
  load_state(z, state_at(static_cast<const T*>(in.initial_state), row.sequence), at.state);
  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  int64_t index = row.first_chunk;
  for (int64_t token = begin; token < end; token += row.chunk, ++index) {
    const int64_t c = std::min(row.chunk, end - token);
    if (row.chunk_states) store_state(z, at.state, state_at(static_cast<T*>(row.chunk_states), index));
    load_tokens<T, Storage>(shape, in, z, token, c, row.head, at.tokens);
    run_chunk<kMode, kWidth>(z, c, at);
    for (int64_t i = 0; i < c; ++i)
      store_row(at.out + i * out_row, width, T(1),
                static_cast<Storage*>(row.o) + ((token + i) * shape.heads + row.head) * width);
  }
  if (row.final_state) store_state(z, at.state, state_at(static_cast<T*>(row.final_state), row.sequence));
}

void gate_forward_row(const VectorGateShape& shape, const VectorGateInputs& in, const GateForwardRow& row) {
  with_storage(shape.dtype, [&](auto* storage) {
    with_mode_and_width(mode_of(shape, in), shape.key_width, [&](auto mode, auto width) {
      forward_row_as<mode.value, width.value, std::remove_pointer_t<decltype(storage)>>(shape, in, row);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(gate_forward_row);

int64_t vector_gate_chunk_length(const VectorGateShape&) { return 16; }

void vector_gate_forward(const VectorGateShape& shape, const VectorGateInputs& in, void* o, void* final_state,
                         void* chunk_states) {
  const int64_t chunk = chunk_of(shape);
  const std::vector<int64_t> starts = chunk_starts(shape.sequences, chunk);
  const double work = static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  parallel_for(shape.sequences.count * shape.heads, work, [&](int64_t i) {
    const int64_t sequence = i / shape.heads;
    HWY_DYNAMIC_DISPATCH(gate_forward_row)
    (shape, in,
     {.sequence = sequence,
      .head = i % shape.heads,
      .chunk = chunk,
      .first_chunk = starts[sequence],
      .o = o,
      .final_state = final_state,
      .chunk_states = chunk_states});
  });
}

}  // namespace prism::kernels
#endif
