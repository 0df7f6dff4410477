// One row at a time, from its last chunk to its first; u and the states of every token are made again from
// the inputs and the state at the chunk's start.
#include "kernels/common/targets.h"
#include "kernels/vector_gate/rows.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_gate/backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include "kernels/vector_gate/gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class Storage>
struct GateBackwardChunk {
  using T = RealOf<Storage>;
  const VectorGateShape& shape;
  const VectorGateInputs& in;
  const GateBackwardRow& row;
  const GateSizes<T>& z;
  const GateGradientBuffers<T>& at;
  int64_t index, token, c;

  /// One value head; what is summed over the group's value heads is added to.
  template <GateMode kMode, int64_t kWidth>
  void value_head(int64_t head, T* d_state_t) const {
    const auto* const states = static_cast<const T*>(row.chunk_states);
    load_state(z, states + (index * shape.heads + head) * z.K * z.V, at.state);
    load_tokens<T, Storage>(shape, in, z, token, c, head, at.tokens);
    const int64_t out_row = shape.read_values ? z.k_row : z.v_row;
    load_rows<T, Storage>(*row.d_o, token, c, head, shape.output_width(), T(1), at.d_out, out_row,
                          shape.read_values ? z.k_row : z.v_cols);
    chunk_gradients<kMode, kWidth>(z, c, d_state_t, at);
    for (int64_t t = 0; t < c && in.erases(); ++t) erase_gradients(t, head);
    store_rows(at.dw, z.v_row, z.V, T(1), static_cast<Storage*>(row.out->dw), head, shape.heads);
    for (int64_t t = 0; t < c; ++t)  // dg = a da
      multiply_row(d_key(t, kDecay), key(t, kDecay), z.k_row, d_key(t, kDecay));
    store_rows(d_key(0, kDecay), z.token_row, z.K, T(1), static_cast<T*>(row.out->dg), head, shape.heads);
  }

  T* key(int64_t t, KeyField field) const { return at.tokens.keys + z.at(t, field); }
  T* d_key(int64_t t, KeyField field) const { return at.d_keys + z.at(t, field); }

  /// to += factors * from, or factor * from.
  void add_row(const T* factors, T factor, const T* from, T* to) const {
    const Tag<T> d;
    for (int64_t i = 0; i < z.k_row; i += lanes<T>()) {
      const auto f = factors ? hn::Load(d, factors + i) : hn::Set(d, factor);
      hn::Store(hn::MulAdd(f, hn::Load(d, from + i), hn::Load(d, to + i)), d, to + i);
    }
  }
  const T* input_row(const View& view, int64_t t) const {
    load_row(row_of<Storage>(view, token + t, 0, row.key_head), z.K, T(1), at.row, z.k_row);
    return at.row;
  }

  /// From b e to b and e, or db = -u . dx; from r = a p (or p) to p and a.
  void erase_gradients(int64_t t, int64_t head) const {
    T db = -dot(at.tokens.u + t * z.v_row, at.dw + t * z.v_row, z.v_cols);
    if (in.erase_key.data) {
      db = dot(input_row(in.erase_key, t), d_key(t, kErase), z.k_row);
      add_row(nullptr, at.tokens.b[t], d_key(t, kErase), at.de + t * z.k_row);
    }
    if (row.out->db) static_cast<T*>(row.out->db)[(token + t) * shape.heads + head] = db;
    T* const dp = in.erase_read.data ? at.dp + t * z.k_row : d_key(t, kK);
    if (shape.erase_undecayed) return add_row(nullptr, T(1), d_key(t, kRead), dp);
    add_row(input_row(in.erase_read.data ? in.erase_read : in.k, t), 0, d_key(t, kRead), d_key(t, kDecay));
    add_row(key(t, kDecay), 0, d_key(t, kRead), dp);
  }

  void clear_sums() const {
    for (int64_t t = 0; t < c; ++t) std::fill_n(d_key(t, kQ), 2 * z.k_row, T(0));  // q and k
    std::fill_n(at.dq_values, c * z.v_row, T(0));
    for (T* zeros : {at.dp, at.de}) std::fill_n(zeros, c * z.k_row, T(0));
  }

  void store_sums() const {
    const auto store = [&](const T* from, int64_t stride, int64_t width, T scale, void* to) {
      if (to)
        store_rows(from, stride, width, scale, static_cast<Storage*>(to), row.key_head, shape.key_heads);
    };
    const auto scale = static_cast<T>(shape.scale);
    if (shape.read_values)
      store(at.dq_values, z.v_row, z.V, scale, row.out->dq);
    else
      store(d_key(0, kQ), z.token_row, z.K, scale, row.out->dq);
    store(d_key(0, kK), z.token_row, z.K, T(1), row.out->dk);
    store(at.dp, z.k_row, z.K, T(1), row.out->derase_read);
    store(at.de, z.k_row, z.K, T(1), row.out->derase_key);
  }

  /// Work rows to a contiguous [N, heads, width].
  template <class To>
  void store_rows(const T* from, int64_t stride, int64_t width, T scale, To* to, int64_t head,
                  int64_t heads) const {
    for (int64_t i = 0; i < c; ++i)
      store_row(from + i * stride, width, scale, to + ((token + i) * heads + head) * width);
  }
};

template <GateMode kMode, int64_t kWidth, class Storage>
void backward_row_as(const VectorGateShape& shape, const VectorGateInputs& in, const GateBackwardRow& row) {
  using T = RealOf<Storage>;
  const GateSizes<T> z(shape, row.chunk, kWidth);
  const int64_t group = shape.heads / shape.key_heads, size = z.K * z.V;
  const auto at = buffers_of_thread<GateGradientBuffers<T>>(z, group);
  const int64_t first_state = row.sequence * shape.heads + row.key_head * group;
  const auto* const d_final = static_cast<const T*>(row.dfinal_state);
  for (int64_t h = 0; h < group; ++h) {
    load_state(z, d_final ? d_final + (first_state + h) * size : nullptr, at.state);
    to_rows_of_values(z, at.state, at.d_states_t + h * z.state_t_size);
  }
  const int64_t begin = shape.sequences.offsets[row.sequence],
                end = shape.sequences.offsets[row.sequence + 1];
  for (int64_t chunk = (end - begin + row.chunk - 1) / row.chunk - 1; chunk >= 0; --chunk) {
    const int64_t token = begin + chunk * row.chunk;
    const GateBackwardChunk<Storage> work{
        shape, in, row, z, at, row.first_chunk + chunk, token, std::min(row.chunk, end - token)};
    work.clear_sums();
    for (int64_t h = 0; h < group; ++h)
      work.template value_head<kMode, kWidth>(row.key_head * group + h, at.d_states_t + h * z.state_t_size);
    work.store_sums();
  }
  if (auto* const d_initial = static_cast<T*>(row.out->dinitial_state))
    for (int64_t h = 0; h < group; ++h) {
      to_rows_of_keys(z, at.d_states_t + h * z.state_t_size, at.state);
      store_state(z, at.state, d_initial + (first_state + h) * size);
    }
}

void gate_backward_row(const VectorGateShape& shape, const VectorGateInputs& in, const GateBackwardRow& row) {
  with_storage(shape.dtype, [&](auto* storage) {
    with_mode_and_width(mode_of(shape, in), shape.key_width, [&](auto mode, auto width) {
      backward_row_as<mode.value, width.value, std::remove_pointer_t<decltype(storage)>>(shape, in, row);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(gate_backward_row);

void vector_gate_backward(const VectorGateShape& shape, const VectorGateInputs& in, const void* chunk_states,
                          const View& d_o, const void* dfinal_state, const VectorGateGradients& out) {
  const int64_t chunk = chunk_of(shape);
  const std::vector<int64_t> starts = chunk_starts(shape.sequences, chunk);
  const double work =
      3.0 * static_cast<double>(shape.tokens()) * shape.heads * shape.key_width * shape.value_width;
  parallel_for(shape.sequences.count * shape.key_heads, work, [&](int64_t i) {
    const int64_t sequence = i / shape.key_heads;
    HWY_DYNAMIC_DISPATCH(gate_backward_row)
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
