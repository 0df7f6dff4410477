// What forward and backward share: sizes, the rows of a mini-batch, layer norm and the inner gradient.
// Compiled once a target. Letters as in README.md.
#if defined(PRISM_KERNELS_TTT_LINEAR_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_TTT_LINEAR_CHUNK_INL_H_
#undef PRISM_KERNELS_TTT_LINEAR_CHUNK_INL_H_
#else
#define PRISM_KERNELS_TTT_LINEAR_CHUNK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/product-inl.h"
#include "kernels/common/workspace.h"
#include "kernels/ttt_linear/rows.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// Work matrices: rows are padded to whole cache lines, and by one more line where equal cache sets would
/// follow each other.
template <class T>
struct TttSizes {
  explicit TttSizes(const TttLinearShape& shape) : C(shape.mini_batch), K(shape.width) {}
  static int64_t stride(int64_t width) {
    constexpr int64_t kLine = kCacheLine / sizeof(T);
    const int64_t padded = round_up(width, kLine);
    return padded * static_cast<int64_t>(sizeof(T)) % 512 == 0 ? padded + kLine : padded;
  }
  static int64_t rows(int64_t count) { return round_up(count, 16); }

  int64_t C, K;
  int64_t inputs = K + 1;  ///< rows of W
  int64_t c_row = stride(C), k_row = stride(inputs);
  int64_t cols = round_up(K, lanes<T>()), input_cols = round_up(inputs, lanes<T>());
  int64_t token_size = rows(C) * k_row, score_size = rows(C) * c_row, state_size = rows(inputs) * k_row,
          turned_size = rows(inputs) * c_row;
};

/// The parameters of a head.
template <class T>
struct TttNorm {
  TttNorm(Carver& memory, const TttSizes<T>& z)
      : weight(memory.take<T>(z.k_row)), bias(memory.take<T>(z.k_row)), ones(memory.take<T>(z.k_row)) {}
  void load(const TttLinearInputs& in, const TttSizes<T>& z, int64_t head) const {
    load_row(static_cast<const T*>(in.norm_weight) + head * z.K, z.K, T(1), weight, z.cols);
    load_row(static_cast<const T*>(in.norm_bias) + head * z.K, z.K, T(1), bias, z.cols);
    std::fill_n(ones, z.cols, T(0));
    std::fill_n(ones, z.K, T(1));
  }
  T *weight, *bias, *ones;  ///< ones: 1 in the columns that exist, 0 in the padding
};

/// `count` token rows of (token, head), zeros after the width; with a one after it for keys and queries.
template <class T, class Storage>
HWY_INLINE void load_tokens(const View& view, const TttSizes<T>& z, int64_t token, int64_t count,
                            int64_t head, bool with_one, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    T* const row = to + i * z.k_row;
    load_row(row_of<Storage>(view, token + i, 0, head), z.K, T(1), row, z.input_cols);
    if (with_one) row[z.K] = 1;
  }
}

/// W [K+1,K] between memory and a work matrix.
template <class T>
HWY_INLINE void load_weights(const T* from, const TttSizes<T>& z, T* to) {
  for (int64_t i = 0; i < z.inputs; ++i) load_row(from + i * z.K, z.K, T(1), to + i * z.k_row, z.cols);
}
template <class T>
HWY_INLINE void store_weights(const T* from, const TttSizes<T>& z, T* to) {
  for (int64_t i = 0; i < z.inputs; ++i) store_row(from + i * z.k_row, z.K, T(1), to + i * z.K);
}

/// c = A B, plus c where `add`; A(i,t) = a[i * a_row + t * a_depth].
template <class T>
HWY_INLINE void matmul(const T* a, int64_t a_row, int64_t a_depth, const T* b, int64_t b_row, T* c,
                       int64_t c_row, int64_t rows, int64_t cols, int64_t depth, bool add = false,
                       Part part = Part::kAll) {
  multiply<T>({.a = a,
               .a_row = a_row,
               .a_depth = a_depth,
               .b = b,
               .b_row = b_row,
               .c = c,
               .c_row = c_row,
               .rows = rows,
               .cols = cols,
               .depth = depth,
               .scale = add ? &kOne<T> : nullptr,
               .scale_stride = 0,
               .part = part});
}

/// Clears what lies after the diagonal of the first `count` rows.
template <class T>
HWY_INLINE void keep_lower(T* scores, const TttSizes<T>& z, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    std::fill(scores + i * z.c_row + i + 1, scores + (i + 1) * z.c_row, T(0));
}

/// The scores q'_t k'_j for j <= t, [count, count]; keys_t [K+1, count].
template <class T>
HWY_INLINE void make_scores(const T* q, const T* keys_t, const TttSizes<T>& z, int64_t count, T* scores) {
  matmul(q, z.k_row, int64_t(1), keys_t, z.c_row, scores, z.c_row, count, round_up(count, lanes<T>()),
         z.inputs, false, Part::kLowerResult);
  keep_lower(scores, z, count);
}

template <class T>
HWY_INLINE T sum_of(hn::Vec<Tag<T>> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}

/// xhat = (z - mean) / deviation, 0 in the padding; returns 1 / deviation.
template <class T>
HWY_INLINE T normalise(const T* z, const T* ones, const TttSizes<T>& s, T* xhat) {
  constexpr T kEps = T(1e-6);
  const Tag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) sum = hn::Add(sum, hn::Load(d, z + c));
  const auto mean = hn::Set(d, sum_of<T>(sum) / T(s.K));
  auto squares = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto x = hn::Mul(hn::Sub(hn::Load(d, z + c), mean), hn::Load(d, ones + c));
    hn::Store(x, d, xhat + c);
    squares = hn::MulAdd(x, x, squares);
  }
  const T r = T(1) / std::sqrt(sum_of<T>(squares) / T(s.K) + kEps);
  for (int64_t c = 0; c < s.cols; c += lanes<T>())
    hn::Store(hn::Mul(hn::Load(d, xhat + c), hn::Set(d, r)), d, xhat + c);
  return r;
}

/// What the inner gradient of one token leaves: 1 / deviation, mean(h xhat).
template <class T>
struct InnerStats {
  T r, hx;
};

/// g = r (h - mean(h) - xhat mean(h xhat)) with h = norm_weight (LN(z) - (v - k)); keeps xhat and h.
template <class T>
HWY_INLINE InnerStats<T> inner_gradient(const T* z, const T* k, const T* v, const TttNorm<T>& norm,
                                        const TttSizes<T>& s, T* xhat, T* h, T* g) {
  const Tag<T> d;
  const T r = normalise(z, norm.ones, s, xhat);
  auto sum_h = hn::Zero(d), sum_hx = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto x = hn::Load(d, xhat + c), w = hn::Load(d, norm.weight + c);
    const auto target = hn::Sub(hn::Load(d, v + c), hn::Load(d, k + c));
    const auto error = hn::Sub(hn::MulAdd(w, x, hn::Load(d, norm.bias + c)), target);
    const auto hc = hn::Mul(error, w);
    hn::Store(hc, d, h + c);
    sum_h = hn::Add(sum_h, hc);
    sum_hx = hn::MulAdd(hc, x, sum_hx);
  }
  const T mean_h = sum_of<T>(sum_h) / T(s.K), mean_hx = sum_of<T>(sum_hx) / T(s.K);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto centred = hn::Sub(hn::Load(d, h + c), hn::Set(d, mean_h));
    const auto gc = hn::NegMulAdd(hn::Load(d, xhat + c), hn::Set(d, mean_hx), centred);
    hn::Store(hn::Mul(hn::Mul(gc, hn::Set(d, r)), hn::Load(d, norm.ones + c)), d, g + c);
  }
  return {r, mean_hx};
}

/// to = factor * from, rows of `cols`.
template <class T>
HWY_INLINE void scale_row(const T* from, T factor, int64_t cols, T* to) {
  const Tag<T> d;
  for (int64_t c = 0; c < cols; c += lanes<T>())
    hn::Store(hn::Mul(hn::Load(d, from + c), hn::Set(d, factor)), d, to + c);
}
/// to += factor * from.
template <class T>
HWY_INLINE void add_row(const T* from, T factor, int64_t cols, T* to) {
  const Tag<T> d;
  for (int64_t c = 0; c < cols; c += lanes<T>())
    hn::Store(hn::MulAdd(hn::Load(d, from + c), hn::Set(d, factor), hn::Load(d, to + c)), d, to + c);
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
