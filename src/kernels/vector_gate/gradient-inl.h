// The gradients of one chunk of one value head. Compiled once a target. Letters as in README.md.
#if defined(PRISM_KERNELS_VECTOR_GATE_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_VECTOR_GATE_GRADIENT_INL_H_
#undef PRISM_KERNELS_VECTOR_GATE_GRADIENT_INL_H_
#else
#define PRISM_KERNELS_VECTOR_GATE_GRADIENT_INL_H_
#endif

#include "kernels/vector_gate/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// Rows of the transposed state that are taken through a chunk together: enough to hide the latency of their
/// sums, few enough for the registers.
template <int64_t kVectors>
inline constexpr int64_t kRowsTogether = kVectors <= 2   ? 4
                                         : kVectors <= 4 ? 2
                                                         : 1;

template <class T>
struct GateGradientBuffers {
  GateGradientBuffers(Carver& memory, const GateSizes<T>& z, int64_t group)
      : tokens(memory, z),
        state(memory.take<T>(z.state_size)),
        state_t(memory.take<T>(z.state_t_size)),
        d_states_t(memory.take<T>(group * z.state_t_size)),
        states(memory.take<T>(4 * (z.C + 1) * z.k_row)),
        d_keys(memory.take<T>(z.C * z.token_row)),
        d_out(memory.take<T>(z.output_size)),
        dw(memory.take<T>(z.value_size)),
        dq_values(memory.take<T>(z.value_size)),
        dp(memory.take<T>(z.C * z.k_row)),
        de(memory.take<T>(z.C * z.k_row)),
        row(memory.take<T>(z.k_row)) {}
  TokenRows<T> tokens;
  T *state, *state_t;  // S of the chunk's start: [K, V], [V, K]
  T* d_states_t;       // one [V, K] a value head of the group
  T* states;           // S_0..S_c of the rows taken together [C + 1, rows, K]
  T* d_keys;  // [C, fields, K]: those of q and k summed over the group's value heads, the others of this one
  T* d_out;   // [C, V], or [C, K] where values are read
  T* dw;      // [C, V]
  T* dq_values;  // [C, V], summed over the group
  T *dp, *de;    // [C, K], summed over the group
  T* row;        // [K]
};

/// S_v of the rows v, v + 1, .. at the chunk's start and after every token: a S_v + x_v k (or - u_v b e + w_v
/// k).
template <GateMode kMode, int64_t kWidth, int64_t kRows, class T>
HWY_INLINE void remake_states(const GateSizes<T>& z, int64_t c, int64_t v, const GateGradientBuffers<T>& at) {
  constexpr int64_t kVectors = kWidth / lanes<T>();
  const Tag<T> d;
  const TokenRows<T>& in = at.tokens;
  hn::Vec<Tag<T>> s[kRows][kVectors];
  PRISM_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) {
      s[r][i] = hn::Load(d, at.state_t + (v + r) * kWidth + i * lanes<T>());
      hn::Store(s[r][i], d, at.states + r * kWidth + i * lanes<T>());
    }
  }
  for (int64_t t = 0; t < c; ++t) {
    T* const to = at.states + (t + 1) * kRows * kWidth;
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) {
      const T* const token = in.keys + t * kKeyFields * kWidth + i * lanes<T>();
      const auto a = hn::Load(d, token + kDecay * kWidth), k = hn::Load(d, token + kK * kWidth);
      PRISM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        s[r][i] = hn::MulAdd(hn::Set(d, in.w[t * z.v_row + v + r]), k, hn::Mul(a, s[r][i]));
        if constexpr (kMode == GateMode::kSeparate)
          s[r][i] = hn::NegMulAdd(hn::Set(d, in.u[t * z.v_row + v + r]), hn::Load(d, token + kErase * kWidth),
                                  s[r][i]);
        hn::Store(s[r][i], d, to + r * kWidth + i * lanes<T>());
      }
    }
  }
}

/// What the rows v, v + 1, .. add to the gradients, from the chunk's last token to its first. With dS_v the
/// gradient of S_v after the token:
///   dS_v += q do_v;  dq += S_v do_v;  dw_v = k . dS_v;  dk += x_v dS_v;  du_v = -b dw_v, or -(b e) . dS_v
///   da += S'_v dS_v;  dr += du_v S'_v;  dS'_v = a dS_v + du_v r           S' the state before the token
/// In kShared, `w` holds x = w - b u.
template <GateMode kMode, int64_t kWidth, int64_t kRows, class T>
HWY_INLINE void row_gradients(const GateSizes<T>& z, int64_t c, int64_t v, T* d_state_t,
                              const GateGradientBuffers<T>& at) {
  constexpr int64_t kVectors = kWidth / lanes<T>();
  constexpr bool kErases = kMode == GateMode::kShared || kMode == GateMode::kSeparate;
  constexpr bool kValues = kMode == GateMode::kValues, kSeparate = kMode == GateMode::kSeparate;
  const Tag<T> d;
  using Vector = hn::Vec<Tag<T>>;
  const TokenRows<T>& in = at.tokens;
  Vector ds[kRows][kVectors];
  PRISM_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i)
      ds[r][i] = hn::Load(d, d_state_t + (v + r) * kWidth + i * lanes<T>());
  }
  for (int64_t t = c - 1; t >= 0; --t) {
    const T *const before = at.states + t * kRows * kWidth, *const after = before + kRows * kWidth;
    const T* const token = in.keys + t * kKeyFields * kWidth;
    T* const d_token = at.d_keys + t * kKeyFields * kWidth;
    const T *const w = in.w + t * z.v_row + v, *const u = in.u + t * z.v_row + v;
    // What dS takes along, channels times a number of each row: q and do, or do and q where values are read.
    const T* const channels = kValues ? at.d_out + t * kWidth : token + kQ * kWidth;
    const T* const numbers = (kValues ? in.q_values : at.d_out) + t * z.v_row + v;
    Vector written[kRows], read[kRows], erased[kRows], du[kRows];
    PRISM_UNROLL
    for (int64_t r = 0; r < kRows; ++r) written[r] = read[r] = erased[r] = hn::Zero(d);
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) {
      const int64_t n = i * lanes<T>();
      const auto key = hn::Load(d, token + kK * kWidth + n), side = hn::Load(d, channels + n);
      auto dq = hn::Zero(d), dk = hn::Load(d, d_token + kK * kWidth + n), de = hn::Zero(d);
      if constexpr (!kValues) dq = hn::Load(d, d_token + kQ * kWidth + n);
      if constexpr (kSeparate) de = hn::Load(d, d_token + kErase * kWidth + n);
      PRISM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const auto s = hn::Load(d, after + r * kWidth + n), number = hn::Set(d, numbers[r]);
        ds[r][i] = hn::MulAdd(side, number, ds[r][i]);
        if constexpr (kValues)
          read[r] = hn::MulAdd(side, s, read[r]);
        else
          dq = hn::MulAdd(number, s, dq);
        dk = hn::MulAdd(hn::Set(d, w[r]), ds[r][i], dk);
        written[r] = hn::MulAdd(key, ds[r][i], written[r]);
        if constexpr (kSeparate) {
          de = hn::NegMulAdd(hn::Set(d, u[r]), ds[r][i], de);
          erased[r] = hn::MulAdd(hn::Load(d, token + kErase * kWidth + n), ds[r][i], erased[r]);
        }
      }
      hn::Store(dk, d, d_token + kK * kWidth + n);
      if constexpr (!kValues) hn::Store(dq, d, d_token + kQ * kWidth + n);
      if constexpr (kSeparate) hn::Store(de, d, d_token + kErase * kWidth + n);
    }
    PRISM_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const auto dw = hn::SumOfLanes(d, written[r]);
      at.dw[t * z.v_row + v + r] = hn::GetLane(dw);
      if constexpr (kMode == GateMode::kShared) du[r] = hn::Mul(hn::Set(d, -in.b[t]), dw);
      if constexpr (kSeparate) du[r] = hn::Neg(hn::SumOfLanes(d, erased[r]));
      if constexpr (kValues) at.dq_values[t * z.v_row + v + r] += hn::GetLane(hn::SumOfLanes(d, read[r]));
    }
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i) {
      const int64_t n = i * lanes<T>();
      const auto a = hn::Load(d, token + kDecay * kWidth + n);
      auto da = hn::Load(d, d_token + kDecay * kWidth + n), dr = hn::Zero(d), p = hn::Zero(d);
      if constexpr (kErases)
        dr = hn::Load(d, d_token + kRead * kWidth + n), p = hn::Load(d, token + kRead * kWidth + n);
      PRISM_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const auto s = hn::Load(d, before + r * kWidth + n);
        da = hn::MulAdd(s, ds[r][i], da);
        ds[r][i] = hn::Mul(a, ds[r][i]);
        if constexpr (kErases) {
          dr = hn::MulAdd(du[r], s, dr);
          ds[r][i] = hn::MulAdd(du[r], p, ds[r][i]);
        }
      }
      hn::Store(da, d, d_token + kDecay * kWidth + n);
      if constexpr (kErases) hn::Store(dr, d, d_token + kRead * kWidth + n);
    }
  }
  PRISM_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    PRISM_UNROLL
    for (int64_t i = 0; i < kVectors; ++i)
      hn::Store(ds[r][i], d, d_state_t + (v + r) * kWidth + i * lanes<T>());
  }
}

/// x = w - b u in the place of w.
template <class T>
HWY_INLINE void take_out_erased(const GateSizes<T>& z, int64_t c, const TokenRows<T>& at) {
  const Tag<T> d;
  for (int64_t t = 0; t < c; ++t) {
    const auto b = hn::Set(d, at.b[t]);
    for (int64_t v = t * z.v_row; v < t * z.v_row + z.v_cols; v += lanes<T>())
      hn::Store(hn::NegMulAdd(b, hn::Load(d, at.u + v), hn::Load(d, at.w + v)), d, at.w + v);
  }
}

/// Everything of the chunk: `state` is S at its start, `d_state_t` the gradient of S at its end, and becomes
/// that of S at its start. dw and the rows of d_keys but those of q and k are set; those and dq_values are
/// added to.
template <GateMode kMode, int64_t kWidth, class T>
HWY_NOINLINE void chunk_gradients(const GateSizes<T>& z, int64_t c, T* d_state_t,
                                  const GateGradientBuffers<T>& at) {
  constexpr int64_t kRows = std::min<int64_t>(kRowsTogether<kWidth / lanes<T>()>, lanes<T>());
  to_rows_of_values(z, at.state, at.state_t);
  if constexpr (kMode == GateMode::kShared || kMode == GateMode::kSeparate)
    run_tokens<kMode, false>(z, c, at.tokens, at.state, static_cast<T*>(nullptr));  // u
  if constexpr (kMode == GateMode::kShared) take_out_erased(z, c, at.tokens);
  for (int64_t t = 0; t < c; ++t)
    std::fill_n(at.d_keys + z.at(t, kDecay), (kKeyFields - kDecay) * kWidth, T(0));
  if (z.V < z.v_cols) std::fill_n(at.dw, c * z.v_row, T(0));  // columns that no row reaches are summed too
  for (int64_t v = 0; v < z.V; v += kRows) {
    remake_states<kMode, kWidth, kRows>(z, c, v, at);
    row_gradients<kMode, kWidth, kRows>(z, c, v, d_state_t, at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
