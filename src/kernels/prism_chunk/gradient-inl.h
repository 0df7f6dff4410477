// The gradients of one chunk of one value head. Compiled once a target. Letters as in README.md.
#if defined(PRISM_KERNELS_PRISM_CHUNK_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_PRISM_CHUNK_GRADIENT_INL_H_
#undef PRISM_KERNELS_PRISM_CHUNK_GRADIENT_INL_H_
#else
#define PRISM_KERNELS_PRISM_CHUNK_GRADIENT_INL_H_
#endif

#include "kernels/prism_chunk/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct GradientBuffers {
  GradientBuffers(Carver& memory, const Sizes<T>& z, bool separate_read, int64_t group)
      : key(memory, z, separate_read),
        value(memory, z),
        values_t(memory.take<T>(z.L * z.rows(z.V) * z.c_row)),
        d_out(memory.take<T>(z.value_size)),
        d_values(memory.take<T>(z.L * z.value_size)),
        d_erased(memory.take<T>(z.value_size)),
        state_t(memory.take<T>(z.rows(z.V) * z.k_row)),
        d_state_t(memory.take<T>(z.rows(z.V) * z.k_row)),
        d_states(memory.take<T>(group * z.state_size)),
        dq(memory.take<T>(z.key_size)),
        d_keys(memory.take<T>(z.L * z.key_size)),
        d_read(separate_read ? memory.take<T>(z.key_size) : d_keys),
        through_state(memory.take<T>(z.key_size)),
        d_query_scores(memory.take<T>(z.score_size)),
        d_read_scores(memory.take<T>(z.score_size)),
        decay_products(memory.take<T>(z.score_size)),
        pairs(memory.take<T>(z.c_row)),
        from_state(memory.take<double>(z.C)),
        to_state(memory.take<double>(z.C)),
        db(memory.take<double>(z.C)) {}
  KeyBuffers<T> key;
  ValueBuffers<T> value;
  T* values_t;                         // L times [V, C]
  T* d_out;                            // dO [C, V]
  T* d_values;                         // L times [C, V]; the first becomes Y
  T* d_erased;                         // dZ = -b Y [C, V]
  T *state_t, *d_state_t;              // [V, K]
  T* d_states;                         // one [K, V] a value head of the group
  T *dq, *d_keys, *d_read;             // summed over the group's value heads
  T* through_state;                    // [C, K]
  T *d_query_scores, *d_read_scores;   // [C, C]
  T* decay_products;                   // X [C, C]: sum of (d score) * score
  T* pairs;                            // [C]
  double *from_state, *to_state, *db;  // [C]: gate gradients of gam and of exp(G_C - G); db
};

/// rows of A times B, all of it.
template <class T>
HWY_INLINE void multiply_rows(const T* a, int64_t a_row, const T* b, int64_t b_row, T* c, int64_t c_row,
                              int64_t rows, int64_t cols, int64_t depth) {
  multiply<T>({.a = a,
               .a_row = a_row,
               .a_depth = 1,
               .b = b,
               .b_row = b_row,
               .c = c,
               .c_row = c_row,
               .rows = rows,
               .cols = cols,
               .depth = depth});
}

/// target(i) = (target(i) +) factor(i) * rows(i); returns nothing, sums(i) += factor(i) rows(i) . with(i).
template <class T>
HWY_INLINE void add_scaled_rows(const Sizes<T>& z, int64_t c, const T* factor, const T* rows, const T* with,
                                bool add, T* target, double* sums) {
  const Tag<T> d;
  for (int64_t i = 0; i < c; ++i) {
    const auto f = hn::Set(d, factor[i]);
    auto sum = hn::Zero(d);
    for (int64_t k = 0; k < z.k_cols; k += lanes<T>()) {
      const int64_t at = i * z.k_row + k;
      const auto scaled = hn::Mul(f, hn::Load(d, rows + at));
      sum = hn::MulAdd(scaled, hn::Load(d, with + at), sum);
      hn::Store(add ? hn::Add(scaled, hn::Load(d, target + at)) : scaled, d, target + at);
    }
    sums[i] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

/// dvalues_l = exp(G_C - G) (k_l dS) + query_scores_l^T dO; then Y = T^T dvalues_1, dZ = -b Y, and
/// dvalues_l += read_scores_l^T dZ for l >= 2. After it, d_values holds dw.
template <class T>
HWY_NOINLINE void value_gradients(const Sizes<T>& z, int64_t c, const T* d_state,
                                  const GradientBuffers<T>& at) {
  const Tag<T> d;
  for (int64_t l = 0; l < z.L; ++l) {
    T* const d_value = at.d_values + l * z.value_size;
    multiply_rows(at.key.keys + l * z.key_size, z.k_row, d_state, z.v_row, d_value, z.v_row, c, z.v_cols,
                  z.K);
    multiply<T>({.a = at.value.query_scores + l * z.score_size,
                 .a_row = 1,
                 .a_depth = z.c_row,
                 .b = at.d_out,
                 .b_row = z.v_row,
                 .c = d_value,
                 .c_row = z.v_row,
                 .rows = c,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = at.value.to_end,
                 .scale_stride = 1,
                 .part = Part::kUpperDepth});
  }
  solve<true>(at.value.solve, z.c_row, at.d_values, z.v_row, c, z.v_cols);
  for (int64_t i = 0; i < c; ++i) {
    const auto minus_b = hn::Set(d, -at.value.b[i]);
    for (int64_t v = i * z.v_row; v < i * z.v_row + z.v_cols; v += lanes<T>())
      hn::Store(hn::Mul(minus_b, hn::Load(d, at.d_values + v)), d, at.d_erased + v);
    at.db[i] = -dot(at.d_values + i * z.v_row, at.value.erased + i * z.v_row, z.v_cols);
  }
  for (int64_t l = 1; l < z.L; ++l)
    multiply<T>({.a = at.value.read_scores + l * z.score_size,
                 .a_row = 1,
                 .a_depth = z.c_row,
                 .b = at.d_erased,
                 .b_row = z.v_row,
                 .c = at.d_values + l * z.value_size,
                 .c_row = z.v_row,
                 .rows = c,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = &kOne<T>,
                 .part = Part::kUpperDepth});
}

/// What passes through the states: dq, dr from S_0 and dk_l from dS_C, with their gate gradients.
/// `add` says whether dq, dk and dr already hold another value head's share.
template <class T>
HWY_NOINLINE void state_gradients(const Sizes<T>& z, int64_t c, const T* d_state, bool add,
                                  const GradientBuffers<T>& at) {
  std::fill_n(at.from_state, c, 0.0);
  std::fill_n(at.to_state, c, 0.0);
  transpose(at.value.state, z.v_row, z.k_cols, z.V, at.state_t, z.k_row);
  transpose(d_state, z.v_row, z.k_cols, z.V, at.d_state_t, z.k_row);
  const auto through = [&](const T* rows, const T* state_t) {
    multiply_rows(rows, z.v_row, state_t, z.k_row, at.through_state, z.k_row, c, z.k_cols, z.V);
  };
  for (int64_t l = 0; l < z.L; ++l) {
    through(at.value.values + l * z.value_size, at.d_state_t);
    add_scaled_rows(z, c, at.value.to_end, at.through_state, at.key.keys + l * z.key_size, add,
                    at.d_keys + l * z.key_size, at.to_state);
  }
  through(at.d_out, at.state_t);
  add_scaled_rows(z, c, at.value.from_start, at.through_state, at.key.q, add, at.dq, at.from_state);
  through(at.d_erased, at.state_t);
  add_scaled_rows(z, c, at.value.from_start, at.through_state, at.key.read, add || at.d_read == at.d_keys,
                  at.d_read, at.from_state);
}

/// Turns the gradient of decayed scores into that of the plain ones, and adds (d score) * score to
/// decay_products; `diagonal` as in mask_scores. The diagonal has no decay, so it stays out of the products.
template <class T>
HWY_INLINE void undo_decay(const Sizes<T>& z, int64_t c, const T* scores, int64_t diagonal, T* d_scores,
                           const GradientBuffers<T>& at) {
  const Tag<T> d;
  for (int64_t i = 0; i < c; ++i)
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>()) {
      const int64_t e = i * z.c_row + j;
      const auto g = hn::IfThenElseZero(first_lanes<T>(i + diagonal - j), hn::Load(d, d_scores + e));
      const auto product = hn::IfThenElseZero(first_lanes<T>(i - j), hn::Mul(g, hn::Load(d, scores + e)));
      hn::Store(hn::Add(product, hn::Load(d, at.decay_products + e)), d, at.decay_products + e);
      hn::Store(hn::Mul(g, hn::Load(d, at.value.decay + e)), d, d_scores + e);
    }
}

/// The share of the first read scores in b's gradient: db_i -= sum_j (Y U^T)_ij read_scores_ij; afterwards
/// d_read_scores is their own gradient, -b Y U^T.
template <class T>
HWY_INLINE void solve_gradient(const Sizes<T>& z, int64_t c, const GradientBuffers<T>& at) {
  const Tag<T> d;
  for (int64_t i = 0; i < c; ++i) {
    const auto minus_b = hn::Set(d, -at.value.b[i]);
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>()) {
      const int64_t e = i * z.c_row + j;
      const auto g = hn::IfThenElseZero(first_lanes<T>(i - j), hn::Load(d, at.d_read_scores + e));
      sum = hn::MulAdd(g, hn::Load(d, at.value.read_scores + e), sum);
      hn::Store(hn::Mul(minus_b, g), d, at.d_read_scores + e);
    }
    at.db[i] -= hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

/// What passes through the scores inside the chunk: dq, dr, dk_l.
template <class T>
HWY_NOINLINE void score_gradients(const Sizes<T>& z, int64_t c, const GradientBuffers<T>& at) {
  for (int64_t i = 0; i < c; ++i) std::fill_n(at.decay_products + i * z.c_row, z.c_row, T(0));
  const auto of_rows = [&](const T* rows, const T* value_t, T* result) {
    multiply<T>({.a = rows,
                 .a_row = z.v_row,
                 .a_depth = 1,
                 .b = value_t,
                 .b_row = z.c_row,
                 .c = result,
                 .c_row = z.c_row,
                 .rows = c,
                 .cols = z.cols(c),
                 .depth = z.V,
                 .part = Part::kLowerResult});
  };
  const auto add = [&](const T* d_scores, bool transposed, const T* rows, T* result) {
    multiply<T>({.a = d_scores,
                 .a_row = transposed ? 1 : z.c_row,
                 .a_depth = transposed ? z.c_row : 1,
                 .b = rows,
                 .b_row = z.k_row,
                 .c = result,
                 .c_row = z.k_row,
                 .rows = c,
                 .cols = z.k_cols,
                 .depth = c,
                 .scale = &kOne<T>,
                 .part = transposed ? Part::kUpperDepth : Part::kLowerDepth});
  };
  for (int64_t l = 0; l < z.L; ++l) {
    T* const value_t = at.values_t + l * z.rows(z.V) * z.c_row;
    transpose(at.value.values + l * z.value_size, z.v_row, round_up(c, lanes<T>()), z.V, value_t, z.c_row);
    of_rows(at.d_out, value_t, at.d_query_scores);
    undo_decay(z, c, at.value.query_scores + l * z.score_size, 1, at.d_query_scores, at);
    of_rows(l == 0 ? at.d_values : at.d_erased, value_t, at.d_read_scores);
    if (l == 0) solve_gradient(z, c, at);
    undo_decay(z, c, at.value.read_scores + l * z.score_size, 0, at.d_read_scores, at);
    const T* const key = at.key.keys + l * z.key_size;
    T* const d_key = at.d_keys + l * z.key_size;
    add(at.d_query_scores, false, key, at.dq);
    add(at.d_query_scores, true, at.key.q, d_key);
    add(at.d_read_scores, false, key, at.d_read);
    add(at.d_read_scores, true, at.key.read, d_key);
  }
}

/// dg_i: every decay from a token before i to token i or later passes gate i once, and nothing else does:
///   sum_{t>=i>j} X_tj + sum_{t<i} to_state_t + sum_{t>=i} from_state_t + whole,
/// with `whole` what passes from S_0 to S_C. Nothing is added only to be taken away again.
template <class T>
HWY_NOINLINE void gate_gradients(const Sizes<T>& z, int64_t c, double whole, const GradientBuffers<T>& at,
                                 int64_t gate_stride, T* dg) {
  const Tag<T> d;
  for (int64_t j = 0; j < z.c_row; j += lanes<T>()) hn::Store(hn::Zero(d), d, at.pairs + j);
  double before = whole, after = 0;
  for (int64_t t = 0; t + 1 < c; ++t) before += at.to_state[t];
  for (int64_t i = c - 1; i >= 0; --i) {
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < columns_of_row<T>(i); j += lanes<T>()) {
      const auto pairs = hn::Add(hn::Load(d, at.pairs + j), hn::Load(d, at.decay_products + i * z.c_row + j));
      hn::Store(pairs, d, at.pairs + j);
      sum = hn::Add(sum, hn::IfThenElseZero(first_lanes<T>(i - j), pairs));
    }
    after += at.from_state[i];
    dg[i * gate_stride] = static_cast<T>(hn::GetLane(hn::SumOfLanes(d, sum)) + before + after);
    if (i > 0) before -= at.to_state[i - 1];
  }
}

/// dS_0 = gam_C dS_C + q^T (gam dO) + r^T (gam dZ); dO and dZ are scaled in place. Returns
/// gam_C sum(dS_C * S_0), the gate gradient of what passes from S_0 to S_C.
template <class T>
HWY_NOINLINE double state_gradient(const Sizes<T>& z, int64_t c, T* d_state, const GradientBuffers<T>& at) {
  double whole = 0;
  for (int64_t k = 0; k < z.K; ++k)
    whole += dot(d_state + k * z.v_row, at.value.state + k * z.v_row, z.v_cols);
  const auto add = [&](const T* rows, T* with, const T* scale) {
    scale_rows(c, at.value.from_start, with, z.v_row, z.v_cols);
    multiply<T>({.a = rows,
                 .a_row = 1,
                 .a_depth = z.k_row,
                 .b = with,
                 .b_row = z.v_row,
                 .c = d_state,
                 .c_row = z.v_row,
                 .rows = z.K,
                 .cols = z.v_cols,
                 .depth = c,
                 .scale = scale});
  };
  add(at.key.q, at.d_out, at.value.from_start + c - 1);
  add(at.key.read, at.d_erased, &kOne<T>);
  return whole * at.value.from_start[c - 1];
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
