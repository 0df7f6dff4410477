// What forward and backward share: the rows of a chunk's tokens, and the token loop over columns of the
// state. Compiled once a target. Letters as in README.md.
#if defined(PRISM_KERNELS_VECTOR_GATE_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_VECTOR_GATE_CHUNK_INL_H_
#undef PRISM_KERNELS_VECTOR_GATE_CHUNK_INL_H_
#else
#define PRISM_KERNELS_VECTOR_GATE_CHUNK_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/common/product-inl.h"
#include "kernels/common/workspace.h"
#include "kernels/vector_gate/rows.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// A token's rows of key channels lie together, so that one pointer reaches them all; so do their gradients.
enum KeyField {
  kQ,      ///< q times scale
  kK,      ///< k
  kDecay,  ///< a = exp(g)
  kRead,   ///< r: p, times a where the erase reads the decayed state
  kErase,  ///< b e, with a key of its own
  kKeyFields
};

/// Sizes of the work matrices. Rows of keys are as wide as the padded key; rows of values are padded to whole
/// cache lines, and by one line more where equal cache sets would follow each other.
template <class T>
struct GateSizes {
  GateSizes(const VectorGateShape& shape, int64_t chunk, int64_t padded_key)
      : C(chunk), K(shape.key_width), V(shape.value_width), k_row(padded_key) {}
  static int64_t stride(int64_t width) {
    constexpr int64_t kLine = kCacheLine / sizeof(T);
    const int64_t padded = round_up(width, kLine);
    return padded * static_cast<int64_t>(sizeof(T)) % 512 == 0 ? padded + kLine : padded;
  }
  /// Where `field` of token t is in the rows of keys.
  int64_t at(int64_t t, KeyField field) const { return (t * kKeyFields + field) * k_row; }

  int64_t C, K, V, k_row;
  int64_t v_row = stride(V), v_cols = round_up(V, lanes<T>()), token_row = kKeyFields * k_row;
  int64_t value_size = C * v_row, output_size = std::max(value_size, C*k_row);
  int64_t state_size = k_row * v_row, state_t_size = round_up(V, 16) * k_row;
};

/// The tokens of a chunk as one value head sees them.
template <class T>
struct TokenRows {
  TokenRows(Carver& memory, const GateSizes<T>& z)
      : keys(memory.take<T>((z.C + 1) * z.token_row)),
        w(memory.take<T>(z.value_size)),
        u(memory.take<T>(z.value_size)),
        q_values(memory.take<T>(z.value_size)),
        b(memory.take<T>(z.C)) {}
  T* keys;      // [C + 1, fields, K]; the last token has a row r of zeros only
  T* w;         // [C, V]
  T* u;         // r S [C, V]: what is erased
  T* q_values;  // [C, V] times scale, where values are read
  T* b;         // [C]
};

/// Copies `count` token rows of `head` into work rows `row` elements apart, of which `cols` are written.
template <class T, class Storage>
HWY_INLINE void load_rows(const View& view, int64_t token, int64_t count, int64_t head, int64_t width,
                          T scale, T* to, int64_t row, int64_t cols) {
  for (int64_t i = 0; i < count; ++i)
    load_row(row_of<Storage>(view, token + i, 0, head), width, scale, to + i * row, cols);
}

/// exp(row) in place; NaN stays NaN.
template <class T>
HWY_INLINE void exponential(T* row, int64_t cols) {
  constexpr T kZeroDecay = -750;  // exp is 0 in double from here on
  const Tag<T> d;
  const auto floor = hn::Set(d, kZeroDecay);
  for (int64_t c = 0; c < cols; c += lanes<T>()) {
    const auto x = hn::Load(d, row + c);
    hn::Store(hn::Exp(d, hn::IfThenElse(hn::Lt(x, floor), floor, x)), d, row + c);
  }
}

/// to = rows * with, element by element.
template <class T>
HWY_INLINE void multiply_row(const T* row, const T* with, int64_t cols, T* to) {
  const Tag<T> d;
  for (int64_t c = 0; c < cols; c += lanes<T>())
    hn::Store(hn::Mul(hn::Load(d, row + c), hn::Load(d, with + c)), d, to + c);
}

template <class T, class Storage>
HWY_NOINLINE void load_tokens(const VectorGateShape& shape, const VectorGateInputs& in, const GateSizes<T>& z,
                              int64_t token, int64_t c, int64_t head, const TokenRows<T>& to) {
  const int64_t key_head = head / (shape.heads / shape.key_heads);
  const auto scale = static_cast<T>(shape.scale);
  const auto keys = [&](const View& view, T factor, KeyField field) {
    load_rows<T, Storage>(view, token, c, key_head, z.K, factor, to.keys + z.at(0, field), z.token_row,
                          z.k_row);
  };
  if (shape.read_values)
    load_rows<T, Storage>(in.q, token, c, key_head, z.V, scale, to.q_values, z.v_row, z.v_cols);
  else
    keys(in.q, scale, kQ);
  keys(in.k, T(1), kK);
  load_rows<T, Storage>(in.w, token, c, head, z.V, T(1), to.w, z.v_row, z.v_cols);
  load_rows<T, T>(in.g, token, c, head, z.K, T(1), to.keys + z.at(0, kDecay), z.token_row, z.k_row);
  for (int64_t t = 0; t < c; ++t) exponential(to.keys + z.at(t, kDecay), z.k_row);
  if (!in.erases()) return;
  keys(in.erase_read.data ? in.erase_read : in.k, T(1), kRead);
  for (int64_t t = 0; t < c; ++t) {
    to.b[t] = in.b.data ? *row_of<T>(in.b, token + t, 0, head) : T(1);
    T* const read = to.keys + z.at(t, kRead);
    if (!shape.erase_undecayed) multiply_row(read, to.keys + z.at(t, kDecay), z.k_row, read);
    if (in.erase_key.data)
      load_row(row_of<Storage>(in.erase_key, token + t, 0, key_head), z.K, to.b[t], to.keys + z.at(t, kErase),
               z.k_row);
  }
  std::fill_n(to.keys + z.at(c, kRead), z.k_row, T(0));
}

/// kVectors vectors of columns of the state, from column j, through the c tokens of a chunk:
///   u = r S;   S = a S + k x, x = w - b u   or   S = a S - (b e) u + k w;   out = q S.
/// A row of the state is met once a token: on the way, r of the next token reads it.
template <GateMode kMode, bool kOutput, int kVectors, class T>
HWY_INLINE void run_columns(const GateSizes<T>& z, int64_t c, int64_t j, const TokenRows<T>& at, T* state,
                            T* out) {
  constexpr bool kErases = kMode == GateMode::kShared || kMode == GateMode::kSeparate;
  const Tag<T> d;
  using Vector = hn::Vec<Tag<T>>;
  Vector u[kVectors], x[kVectors], next[kVectors], sum[kVectors];
  PRISM_UNROLL
  for (int i = 0; i < kVectors; ++i) next[i] = hn::Zero(d);
  for (int64_t k = 0; kErases && k < z.K; ++k) {
    const auto read = hn::Set(d, at.keys[z.at(0, kRead) + k]);
    PRISM_UNROLL
    for (int i = 0; i < kVectors; ++i)
      next[i] = hn::MulAdd(read, hn::Load(d, state + k * z.v_row + j + i * lanes<T>()), next[i]);
  }
  for (int64_t t = 0; t < c; ++t) {
    const T *const decay = at.keys + z.at(t, kDecay), *const key = at.keys + z.at(t, kK),
                   *const query = at.keys + z.at(t, kQ), *const read = at.keys + z.at(t + 1, kRead),
                   *const erase = at.keys + z.at(t, kErase);
    PRISM_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int64_t column = t * z.v_row + j + i * lanes<T>();
      x[i] = hn::Load(d, at.w + column);
      sum[i] = hn::Zero(d);
      if constexpr (kErases) {
        u[i] = next[i];
        next[i] = hn::Zero(d);
        hn::Store(u[i], d, at.u + column);
      }
      if constexpr (kMode == GateMode::kShared) x[i] = hn::NegMulAdd(hn::Set(d, at.b[t]), u[i], x[i]);
    }
    for (int64_t k = 0; k < z.K; ++k) {
      T* const row = state + k * z.v_row + j;
      const auto a = hn::Set(d, decay[k]), write = hn::Set(d, key[k]);
      PRISM_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        auto s = hn::Mul(a, hn::Load(d, row + i * lanes<T>()));
        if constexpr (kMode == GateMode::kSeparate) s = hn::NegMulAdd(hn::Set(d, erase[k]), u[i], s);
        s = hn::MulAdd(write, x[i], s);
        if constexpr (kOutput) sum[i] = hn::MulAdd(hn::Set(d, query[k]), s, sum[i]);
        if constexpr (kErases) next[i] = hn::MulAdd(hn::Set(d, read[k]), s, next[i]);
        hn::Store(s, d, row + i * lanes<T>());
      }
    }
    PRISM_UNROLL
    for (int i = 0; kOutput && i < kVectors; ++i)
      hn::Store(sum[i], d, out + t * z.v_row + j + i * lanes<T>());
  }
}

template <GateMode kMode, bool kOutput, class T>
HWY_NOINLINE void run_tokens(const GateSizes<T>& z, int64_t c, const TokenRows<T>& at, T* state, T* out) {
  int64_t j = 0;
  for (; j + 2 * lanes<T>() <= z.v_cols; j += 2 * lanes<T>())
    run_columns<kMode, kOutput, 2>(z, c, j, at, state, out);
  if (j < z.v_cols) run_columns<kMode, kOutput, 1>(z, c, j, at, state, out);
}

/// Copies a state between memory [K, V] and a work matrix, whose rows after K are cleared; a null source
/// means zeros.
template <class T>
HWY_INLINE void load_state(const GateSizes<T>& z, const T* from, T* state) {
  for (int64_t k = 0; k < z.k_row; ++k) {
    if (from && k < z.K)
      load_row(from + k * z.V, z.V, T(1), state + k * z.v_row, z.v_cols);
    else
      std::fill_n(state + k * z.v_row, z.v_cols, T(0));
  }
}
template <class T>
HWY_INLINE void store_state(const GateSizes<T>& z, const T* state, T* to) {
  for (int64_t k = 0; k < z.K; ++k) store_row(state + k * z.v_row, z.V, T(1), to + k * z.V);
}

/// [K, V] and [V, K] work matrices of the same state.
template <class T>
HWY_INLINE void to_rows_of_values(const GateSizes<T>& z, const T* state, T* state_t) {
  transpose(state, z.v_row, z.k_row, z.v_cols, state_t, z.k_row);
}
template <class T>
HWY_INLINE void to_rows_of_keys(const GateSizes<T>& z, const T* state_t, T* state) {
  transpose(state_t, z.k_row, z.v_cols, z.k_row, state, z.v_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
