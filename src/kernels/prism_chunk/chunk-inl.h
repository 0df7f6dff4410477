// What forward and backward share: the work matrices of a chunk, its gates, its masked scores and its pseudo
// values U. Compiled once a target. Letters as in README.md.
#if defined(PRISM_KERNELS_PRISM_CHUNK_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_PRISM_CHUNK_CHUNK_INL_H_
#undef PRISM_KERNELS_PRISM_CHUNK_CHUNK_INL_H_
#else
#define PRISM_KERNELS_PRISM_CHUNK_CHUNK_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/common/product-inl.h"
#include "kernels/common/workspace.h"
#include "kernels/prism_chunk/rows.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// Sizes of the work matrices: rows are padded to whole cache lines, and by one line more where equal cache
/// sets would follow each other.
template <class T>
struct Sizes {
  Sizes(const PrismChunkShape& shape, int64_t chunk, int64_t value_width)
      : C(chunk), K(shape.key_width), V(value_width), L(shape.steps) {}
  static int64_t stride(int64_t width) {
    constexpr int64_t kLine = kCacheLine / sizeof(T);
    const int64_t padded = round_up(width, kLine);
    return padded * static_cast<int64_t>(sizeof(T)) % 512 == 0 ? padded + kLine : padded;
  }
  static int64_t cols(int64_t width) { return round_up(width, lanes<T>()); }
  static int64_t rows(int64_t count) { return round_up(count, 16); }

  int64_t C, K, V, L;
  int64_t c_row = stride(C), k_row = stride(K), v_row = stride(V);
  int64_t k_cols = cols(K), v_cols = cols(V);
  int64_t key_size = rows(C) * k_row, value_size = rows(C) * v_row, score_size = rows(C) * c_row;
  int64_t state_size = rows(K) * v_row;
};

/// The part of a chunk that does not depend on the value head.
template <class T>
struct KeyBuffers {
  KeyBuffers(Carver& memory, const Sizes<T>& z, bool separate_read)
      : q(memory.take<T>(z.key_size)),
        keys(memory.take<T>(z.L * z.key_size)),
        keys_t(memory.take<T>(z.L * z.rows(z.K) * z.c_row)),
        read(separate_read ? memory.take<T>(z.key_size) : keys) {}
  T* q;       // [C, K], times scale
  T* keys;    // L times [C, K]
  T* keys_t;  // L times [K, C]
  T* read;    // [C, K]; the first keys unless erase_read is given
};

template <class T>
struct ValueBuffers {
  ValueBuffers(Carver& memory, const Sizes<T>& z)
      : values(memory.take<T>(z.L * z.value_size)),
        erased(memory.take<T>(z.value_size)),
        state(memory.take<T>(z.state_size)),
        decay(memory.take<T>(z.score_size)),
        read_scores(memory.take<T>(z.L * z.score_size)),
        query_scores(memory.take<T>(z.L * z.score_size)),
        solve(memory.take<T>(z.score_size)),
        gate_high(memory.take<T>(z.c_row)),
        gate_low(memory.take<T>(z.c_row)),
        from_start(memory.take<T>(z.c_row)),
        to_end(memory.take<T>(z.c_row)),
        b(memory.take<T>(z.c_row)) {}
  T* values;                   // L times [C, V]: U, w_2 .. w_L
  T* erased;                   // Z [C, V]
  T* state;                    // S_0 [K, V]
  T* decay;                    // Gam [C, C], lower triangle with ones on the diagonal
  T* read_scores;              // L times strict(Gam * R k_l^T) [C, C]
  T* query_scores;             // L times lower(Gam * q k_l^T) [C, C]
  T* solve;                    // -b strict(Gam * R k_1^T) [C, C]
  T *gate_high, *gate_low;     // G as a sum of two, so that differences keep their accuracy
  T *from_start, *to_end, *b;  // gam, exp(G_C - G), b
};

/// Copies `count` token rows into work rows and clears those up to a whole vector of tokens.
template <class T, class Storage>
HWY_INLINE void load_rows(const View& view, int64_t token, int64_t count, int64_t step, int64_t head,
                          int64_t width, T scale, T* to, int64_t row, int64_t cols, int64_t offset = 0) {
  for (int64_t i = 0; i < count; ++i)
    load_row(row_of<Storage>(view, token + i, step, head) + offset, width, scale, to + i * row, cols);
  for (int64_t i = count; i < round_up(count, lanes<T>()); ++i) std::fill_n(to + i * row, cols, T(0));
}

/// Asks for token rows ahead of their use: a row's tokens lie a whole token stride apart, which hardware
/// prefetchers follow badly.
template <class Storage>
HWY_INLINE void prefetch_rows(const View& view, int64_t token, int64_t count, int64_t step, int64_t head,
                              int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    const Storage* const row = row_of<Storage>(view, token + i, step, head);
    for (int64_t c = 0; c < width; c += kCacheLine / static_cast<int64_t>(sizeof(Storage)))
      hwy::Prefetch(row + c);
  }
}

template <class T, class Storage>
HWY_INLINE void load_keys(const PrismChunkShape& shape, const PrismChunkInputs& in, const Sizes<T>& z,
                          int64_t token, int64_t c, int64_t head, const KeyBuffers<T>& to) {
  load_rows<T, Storage>(in.q, token, c, 0, head, z.K, static_cast<T>(shape.scale), to.q, z.k_row, z.k_cols);
  for (int64_t l = 0; l < z.L; ++l) {
    T* const key = to.keys + l * z.key_size;
    load_rows<T, Storage>(in.k, token, c, l, head, z.K, T(1), key, z.k_row, z.k_cols);
    transpose(key, z.k_row, round_up(c, lanes<T>()), z.K, to.keys_t + l * z.rows(z.K) * z.c_row, z.c_row);
  }
  if (in.erase_read.data)
    load_rows<T, Storage>(in.erase_read, token, c, 0, head, z.K, T(1), to.read, z.k_row, z.k_cols);
}

/// exp((high - high_j) + (low - low_j)) where `mask`, else 0; nothing outside the mask is exponentiated.
template <class T, class V, class M>
HWY_INLINE V decay_between(V high, V low, V high_j, V low_j, M mask) {
  const Tag<T> d;
  const V difference = hn::Add(hn::Sub(high, high_j), hn::Sub(low, low_j));
  return hn::IfThenElseZero(mask, hn::Exp(d, hn::IfThenElseZero(mask, difference)));
}

template <class T>
HWY_INLINE hn::Mask<Tag<T>> first_lanes(int64_t count) {
  return hn::FirstN(Tag<T>(), static_cast<size_t>(std::clamp<int64_t>(count, 0, lanes<T>())));
}

/// Columns of row i that a block of rows may read: all of its tile.
template <class T>
HWY_INLINE int64_t columns_of_row(int64_t i) {
  return round_up(i + 1, std::max<int64_t>(lanes<T>(), kTileRows));
}

/// Reads b and g, and makes every decay of the chunk.
template <class T>
HWY_NOINLINE void load_gates(const PrismChunkInputs& in, const Sizes<T>& z, int64_t token, int64_t c,
                             int64_t head, const ValueBuffers<T>& to) {
  constexpr double kZeroDecay = -750;  // exp is 0 in double from here on; keeps -inf out of differences
  double sum = 0;
  for (int64_t i = 0; i < c; ++i) {
    to.b[i] = *row_of<T>(in.b, token + i, 0, head);
    sum += std::max<double>(*row_of<T>(in.g, token + i, 0, head), kZeroDecay);
    to.gate_high[i] = static_cast<T>(sum);
    to.gate_low[i] = static_cast<T>(sum - to.gate_high[i]);
  }
  std::fill(to.gate_high + c, to.gate_high + z.c_row, T(0));
  std::fill(to.gate_low + c, to.gate_low + z.c_row, T(0));
  const Tag<T> d;
  const auto last_high = hn::Set(d, to.gate_high[c - 1]), last_low = hn::Set(d, to.gate_low[c - 1]);
  for (int64_t j = 0; j < c; j += lanes<T>()) {
    const auto high = hn::Load(d, to.gate_high + j), low = hn::Load(d, to.gate_low + j);
    const auto mask = first_lanes<T>(c - j);
    hn::Store(decay_between<T>(high, low, hn::Zero(d), hn::Zero(d), mask), d, to.from_start + j);
    hn::Store(decay_between<T>(last_high, last_low, high, low, mask), d, to.to_end + j);
  }
  for (int64_t i = 0; i < c; ++i) {
    const auto high = hn::Set(d, to.gate_high[i]), low = hn::Set(d, to.gate_low[i]);
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>())
      hn::Store(decay_between<T>(high, low, hn::Load(d, to.gate_high + j), hn::Load(d, to.gate_low + j),
                                 first_lanes<T>(i + 1 - j)),
                d, to.decay + i * z.c_row + j);
  }
}

/// scores = decay * scores below the diagonal (and on it when `diagonal` is 1), zero elsewhere.
template <class T>
HWY_INLINE void mask_scores(const Sizes<T>& z, int64_t c, const T* decay, int64_t diagonal, T* scores) {
  const Tag<T> d;
  for (int64_t i = 0; i < c; ++i)
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>()) {
      T* const at = scores + i * z.c_row + j;
      const auto decayed = hn::Mul(hn::Load(d, at), hn::Load(d, decay + i * z.c_row + j));
      hn::Store(hn::IfThenElseZero(first_lanes<T>(i + diagonal - j), decayed), d, at);
    }
}

/// read_scores, query_scores and solve of the chunk.
template <class T>
HWY_NOINLINE void make_scores(const Sizes<T>& z, int64_t c, const KeyBuffers<T>& key,
                              const ValueBuffers<T>& to) {
  const Tag<T> d;
  for (int64_t l = 0; l < z.L; ++l) {
    const T* const key_t = key.keys_t + l * z.rows(z.K) * z.c_row;
    T* const read = to.read_scores + l * z.score_size;
    T* const query = to.query_scores + l * z.score_size;
    const auto scores = [&](const T* rows, T* result) {
      multiply<T>({.a = rows,
                   .a_row = z.k_row,
                   .a_depth = 1,
                   .b = key_t,
                   .b_row = z.c_row,
                   .c = result,
                   .c_row = z.c_row,
                   .rows = c,
                   .cols = z.cols(c),
                   .depth = z.K,
                   .part = Part::kLowerResult});
    };
    scores(key.read, read);
    mask_scores(z, c, to.decay, 0, read);
    scores(key.q, query);
    mask_scores(z, c, to.decay, 1, query);
  }
  for (int64_t i = 0; i < c; ++i) {
    const auto factor = hn::Set(d, -to.b[i]);
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>())
      hn::Store(hn::Mul(factor, hn::Load(d, to.read_scores + i * z.c_row + j)), d,
                to.solve + i * z.c_row + j);
  }
}

/// erased = Z = gam (R S_0) + sum_{l>=2} read_scores_l w_l, then values_1 = U = T (w_1 - b Z).
template <class T>
HWY_NOINLINE void make_values(const Sizes<T>& z, int64_t c, const KeyBuffers<T>& key,
                              const ValueBuffers<T>& to) {
  const Tag<T> d;
  multiply<T>({.a = key.read,
               .a_row = z.k_row,
               .a_depth = 1,
               .b = to.state,
               .b_row = z.v_row,
               .c = to.erased,
               .c_row = z.v_row,
               .rows = c,
               .cols = z.v_cols,
               .depth = z.K});
  for (int64_t l = 1; l < z.L; ++l)
    multiply<T>({.a = to.read_scores + l * z.score_size,
                 .a_row = z.c_row,
                 .a_depth = 1,
                 .b = to.values + l * z.value_size,
                 .b_row = z.v_row,
                 .c = to.erased,
                 .c_row = z.v_row,
                 .rows = c,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = l == 1 ? to.from_start : &kOne<T>,
                 .scale_stride = l == 1 ? 1 : 0,
                 .part = Part::kLowerDepth});
  for (int64_t i = 0; i < c; ++i) {
    T *const erased = to.erased + i * z.v_row, *const value = to.values + i * z.v_row;
    const auto decay = hn::Set(d, z.L == 1 ? to.from_start[i] : T(1)), b = hn::Set(d, to.b[i]);
    for (int64_t v = 0; v < z.v_cols; v += lanes<T>()) {
      const auto total = hn::Mul(decay, hn::Load(d, erased + v));
      hn::Store(total, d, erased + v);
      hn::Store(hn::NegMulAdd(b, total, hn::Load(d, value + v)), d, value + v);
    }
  }
  solve<false>(to.solve, z.c_row, to.values, z.v_row, c, z.v_cols);
}

/// rows(i) *= factor(i).
template <class T>
HWY_INLINE void scale_rows(int64_t count, const T* factor, T* rows, int64_t row, int64_t cols) {
  const Tag<T> d;
  for (int64_t i = 0; i < count; ++i) {
    const auto f = hn::Set(d, factor[i]);
    for (int64_t v = 0; v < cols; v += lanes<T>())
      hn::Store(hn::Mul(f, hn::Load(d, rows + i * row + v)), d, rows + i * row + v);
  }
}

/// Copies a state between memory [K, V] (rows of `stride`) and a work matrix, whose rows after K are cleared
/// up to a whole vector; a null source means zeros.
template <class T>
HWY_INLINE void load_state(const Sizes<T>& z, const T* from, int64_t stride, T* state) {
  for (int64_t k = 0; k < z.k_cols; ++k) {
    if (from && k < z.K)
      load_row(from + k * stride, z.V, T(1), state + k * z.v_row, z.v_cols);
    else
      std::fill_n(state + k * z.v_row, z.v_cols, T(0));
  }
}
template <class T>
HWY_INLINE void store_state(const Sizes<T>& z, const T* state, T* to, int64_t stride) {
  for (int64_t k = 0; k < z.K; ++k) store_row(state + k * z.v_row, z.V, T(1), to + k * stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
