// One row at a time, from its last chunk to its first; T and U are made again from the inputs and the state
// at the chunk's start.
#include "kernels/common/targets.h"
#include "kernels/prism_chunk/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prism_chunk/backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/prism_chunk/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class Storage>
struct BackwardChunk {
  using T = RealOf<Storage>;
  const PrismChunkShape& shape;
  const PrismChunkInputs& in;
  const BackwardRow& row;
  const Sizes<T>& z;
  const GradientBuffers<T>& at;
  int64_t index, token, c;

  /// One value head; dq, dk and dr are added to when it is not the group's first.
  void value_head(int64_t head, T* d_state, bool add) const {
    const auto* const states = static_cast<const T*>(row.chunk_states);
    load_state(z, states + (index * shape.heads + head) * z.K * z.V, z.V, at.value.state);
    for (int64_t l = 0; l < z.L; ++l)
      load_rows<T, Storage>(in.w, token, c, l, head, z.V, T(1), at.value.values + l * z.value_size, z.v_row,
                            z.v_cols);
    load_rows<T, Storage>(*row.d_o, token, c, 0, head, z.V, T(1), at.d_out, z.v_row, z.v_cols);
    load_gates(in, z, token, c, head, at.value);
    make_scores(z, c, at.key, at.value);
    make_values(z, c, at.key, at.value);
    value_gradients(z, c, d_state, at);
    for (int64_t l = 0; l < z.L; ++l)
      store_rows(at.d_values + l * z.value_size, z.v_row, z.V, T(1), row.out->dw, l, z.L, head, shape.heads);
    state_gradients(z, c, d_state, add, at);
    score_gradients(z, c, at);
    const double whole = state_gradient(z, c, d_state, at);
    const int64_t first = token * shape.heads + head;
    gate_gradients(z, c, whole, at, shape.heads, static_cast<T*>(row.out->dg) + first);
    for (int64_t i = 0; i < c; ++i)
      static_cast<T*>(row.out->db)[first + i * shape.heads] = static_cast<T>(at.db[i]);
  }

  void store_keys() const {
    const int64_t heads = shape.key_heads, head = row.key_head;
    store_rows(at.dq, z.k_row, z.K, static_cast<T>(shape.scale), row.out->dq, 0, 1, head, heads);
    for (int64_t l = 0; l < z.L; ++l)
      store_rows(at.d_keys + l * z.key_size, z.k_row, z.K, T(1), row.out->dk, l, z.L, head, heads);
    if (row.out->derase_read && in.erase_read.data)
      store_rows(at.d_read, z.k_row, z.K, T(1), row.out->derase_read, 0, 1, head, heads);
  }

  /// Work rows to a contiguous [N, steps, heads, width].
  void store_rows(const T* from, int64_t stride, int64_t width, T scale, void* to, int64_t step,
                  int64_t steps, int64_t head, int64_t heads) const {
    for (int64_t i = 0; i < c; ++i)
      store_row(from + i * stride, width, scale,
                static_cast<Storage*>(to) + (((token + i) * steps + step) * heads + head) * width);
  }
};

template <class Storage>
void backward_row_as(const PrismChunkShape& shape, const PrismChunkInputs& in, const BackwardRow& row) {
  using T = RealOf<Storage>;
  const Sizes<T> z(shape, row.chunk, shape.value_width);
  const int64_t group = shape.heads / shape.key_heads, size = z.K * z.V;
  const auto at = buffers_of_thread<GradientBuffers<T>>(z, in.erase_read.data != nullptr, group);
  const int64_t first_state = row.sequence * shape.heads + row.key_head * group;
  const auto* const d_final = static_cast<const T*>(row.dfinal_state);
  for (int64_t h = 0; h < group; ++h)
    load_state(z, d_final ? d_final + (first_state + h) * size : nullptr, z.V,
               at.d_states + h * z.state_size);
  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  for (int64_t chunk = (end - begin + row.chunk - 1) / row.chunk - 1; chunk >= 0; --chunk) {
    const int64_t token = begin + chunk * row.chunk;
    const BackwardChunk<Storage> work{
        shape, in, row, z, at, row.first_chunk + chunk, token, std::min(row.chunk, end - token)};
    load_keys<T, Storage>(shape, in, z, token, work.c, row.key_head, at.key);
    for (int64_t h = 0; h < group; ++h)
      work.value_head(row.key_head * group + h, at.d_states + h * z.state_size, h > 0);
    work.store_keys();
  }
  if (auto* const d_initial = static_cast<T*>(row.out->dinitial_state))
    for (int64_t h = 0; h < group; ++h)
      store_state(z, at.d_states + h * z.state_size, d_initial + (first_state + h) * size, z.V);
}

void backward_row(const PrismChunkShape& shape, const PrismChunkInputs& in, const BackwardRow& row) {
  with_storage(shape.dtype, [&](auto* storage) {
    backward_row_as<std::remove_pointer_t<decltype(storage)>>(shape, in, row);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(backward_row);

void prism_chunk_backward(const PrismChunkShape& shape, const PrismChunkInputs& in, const void* chunk_states,
                          const View& d_o, const void* dfinal_state, const PrismChunkGradients& out) {
  const int64_t chunk = chunk_of(shape);
  const std::vector<int64_t> starts = chunk_starts(shape.sequences, chunk);
  const double work =
      3.0 * static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  parallel_for(shape.sequences.count * shape.key_heads, work, [&](int64_t i) {
    const int64_t sequence = i / shape.key_heads;
    HWY_DYNAMIC_DISPATCH(backward_row)
    (shape, in,
     {.sequence = sequence,
      .key_head = i % shape.key_heads,
      .chunk = chunk,
      .first_chunk = starts[sequence],
      .chunk_states = chunk_states,
      .d_o = &d_o,
      .dfinal_state = dfinal_state,
      .out = &out});
  });
}

}  // namespace prism::kernels
#endif
