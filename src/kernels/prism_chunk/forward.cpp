// One row at a time, chunk after chunk; the state and every matrix of the chunk stay in the thread's cache.
#include "kernels/common/targets.h"
#include "kernels/prism_chunk/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prism_chunk/forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/prism_chunk/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct ForwardBuffers {
  ForwardBuffers(Carver& memory, const Sizes<T>& z, bool separate_read)
      : key(memory, z, separate_read), value(memory, z), out(memory.take<T>(z.value_size)) {}
  KeyBuffers<T> key;
  ValueBuffers<T> value;
  T* out;  // O [C, V]
};

/// O = gam (q S_0) + sum_l query_scores_l values_l.
template <class T>
HWY_INLINE void make_output(const Sizes<T>& z, int64_t c, const ForwardBuffers<T>& at) {
  multiply<T>({.a = at.key.q,
               .a_row = z.k_row,
               .a_depth = 1,
               .b = at.value.state,
               .b_row = z.v_row,
               .c = at.out,
               .c_row = z.v_row,
               .rows = c,
               .cols = z.v_cols,
               .depth = z.K});
  for (int64_t l = 0; l < z.L; ++l)
    multiply<T>({.a = at.value.query_scores + l * z.score_size,
                 .a_row = z.c_row,
                 .a_depth = 1,
                 .b = at.value.values + l * z.value_size,
                 .b_row = z.v_row,
                 .c = at.out,
                 .c_row = z.v_row,
                 .rows = c,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = l == 0 ? at.value.from_start : &kOne<T>,
                 .scale_stride = l == 0 ? 1 : 0,
                 .part = Part::kLowerDepth});
}

/// S_C = gam_C S_0 + sum_l k_l^T (exp(G_C - G) values_l); the values are scaled in place.
template <class T>
HWY_INLINE void advance_state(const Sizes<T>& z, int64_t c, const ForwardBuffers<T>& at) {
  for (int64_t l = 0; l < z.L; ++l) {
    T* const values = at.value.values + l * z.value_size;
    scale_rows(c, at.value.to_end, values, z.v_row, z.v_cols);
    multiply<T>({.a = at.key.keys + l * z.key_size,
                 .a_row = 1,
                 .a_depth = z.k_row,
                 .b = values,
                 .b_row = z.v_row,
                 .c = at.value.state,
                 .c_row = z.v_row,
                 .rows = z.K,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = l == 0 ? at.value.from_start + c - 1 : &kOne<T>});
  }
}

/// Asks for the inputs of the chunk that starts at `token`.
template <class Storage>
HWY_INLINE void prefetch_chunk(const PrismChunkShape& shape, const PrismChunkInputs& in,
                               const ForwardRow& row, int64_t key_head, int64_t token, int64_t c) {
  prefetch_rows<Storage>(in.q, token, c, 0, key_head, shape.key_width);
  for (int64_t l = 0; l < shape.steps; ++l) {
    prefetch_rows<Storage>(in.k, token, c, l, key_head, shape.key_width);
    prefetch_rows<Storage>(in.w, token, c, l, row.head, shape.value_width);
  }
}

template <class Storage>
void forward_row_as(const PrismChunkShape& shape, const PrismChunkInputs& in, const ForwardRow& row) {
  using T = RealOf<Storage>;
  const Sizes<T> z(shape, row.chunk, row.columns);
  const auto at = buffers_of_thread<ForwardBuffers<T>>(z, in.erase_read.data != nullptr);
  const int64_t V = shape.value_width, key_head = row.head / (shape.heads / shape.key_heads);
  const auto state_at = [&](auto* states, int64_t index) {
    return states ? states + (index * shape.heads + row.head) * z.K * V + row.column : nullptr;
  };
  load_state(z, state_at(static_cast<const T*>(in.initial_state), row.sequence), V, at.value.state);
  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  int64_t index = row.first_chunk;
  for (int64_t token = begin; token < end; token += row.chunk, ++index) {
    const int64_t c = std::min(row.chunk, end - token);
    if (row.chunk_states)
      store_state(z, at.value.state, state_at(static_cast<T*>(row.chunk_states), index), V);
    load_keys<T, Storage>(shape, in, z, token, c, key_head, at.key);
    for (int64_t l = 0; l < z.L; ++l)
      load_rows<T, Storage>(in.w, token, c, l, row.head, z.V, T(1), at.value.values + l * z.value_size,
                            z.v_row, z.v_cols, row.column);
    const int64_t next = std::min(end, token + row.chunk);
    prefetch_chunk<Storage>(shape, in, row, key_head, next, std::min(row.chunk, end - next));
    load_gates(in, z, token, c, row.head, at.value);
    make_scores(z, c, at.key, at.value);
    make_values(z, c, at.key, at.value);
    make_output(z, c, at);
    for (int64_t i = 0; i < c; ++i)
      store_row(at.out + i * z.v_row, z.V, T(1),
                static_cast<Storage*>(row.o) + ((token + i) * shape.heads + row.head) * V + row.column);
    advance_state(z, c, at);
  }
  if (row.final_state)
    store_state(z, at.value.state, state_at(static_cast<T*>(row.final_state), row.sequence), V);
}

void forward_row(const PrismChunkShape& shape, const PrismChunkInputs& in, const ForwardRow& row) {
  with_storage(shape.dtype, [&](auto* storage) {
    forward_row_as<std::remove_pointer_t<decltype(storage)>>(shape, in, row);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(forward_row);

namespace {

/// Pieces of the value columns when there are fewer rows than threads: columns do not depend on each other,
/// so the bits stay the same; every piece repeats the scores.
int64_t column_pieces(const PrismChunkShape& shape) {
  constexpr int64_t kColumns = 32;  // a piece is worth that much
  const int64_t rows = std::max<int64_t>(1, shape.sequences.count * shape.heads);
  return std::clamp<int64_t>(omp_get_max_threads() / rows, 1,
                             std::max<int64_t>(1, shape.value_width / kColumns));
}

}  // namespace

int64_t prism_chunk_length(const PrismChunkShape& shape) {
  const int64_t width = std::max(shape.key_width, shape.value_width);
  return width <= 32 ? 16 : 32;
}

int64_t prism_chunk_count(const PrismChunkShape& shape, int64_t chunk) {
  return chunk_starts(shape.sequences, chunk).back();
}

void prism_chunk_forward(const PrismChunkShape& shape, const PrismChunkInputs& in, void* o, void* final_state,
                         void* chunk_states) {
  const int64_t chunk = chunk_of(shape), pieces = column_pieces(shape);
  const std::vector<int64_t> starts = chunk_starts(shape.sequences, chunk);
  const double work = static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  const int64_t width = (shape.value_width / pieces + 15) / 16 * 16;
  parallel_for(shape.sequences.count * shape.heads * pieces, work, [&](int64_t i) {
    const int64_t row = i / pieces, column = std::min(shape.value_width, i % pieces * width);
    const int64_t columns =
        i % pieces == pieces - 1 ? shape.value_width - column : std::min(width, shape.value_width - column);
    if (columns == 0) return;
    const int64_t sequence = row / shape.heads;
    HWY_DYNAMIC_DISPATCH(forward_row)
    (shape, in,
     {.sequence = sequence,
      .head = row % shape.heads,
      .column = column,
      .columns = columns,
      .chunk = chunk,
      .first_chunk = starts[sequence],
      .o = o,
      .final_state = final_state,
      .chunk_states = chunk_states});
  });
}

}  // namespace prism::kernels
#endif
