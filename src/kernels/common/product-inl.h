// Small matrix products on padded work matrices, register-blocked. Compiled once a target.
//
// Every element of the result is one chain of fused multiply-adds over the depth in ascending order, whatever
// the tile it falls in; so results depend neither on the tiling nor on which columns are computed together.
#if defined(PRISM_KERNELS_COMMON_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_COMMON_PRODUCT_INL_H_
#undef PRISM_KERNELS_COMMON_PRODUCT_INL_H_
#else
#define PRISM_KERNELS_COMMON_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

// A tile of kTileRows x kTileVectors accumulators: 16 of 32 registers, or 8 of 16.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif
inline constexpr int kTileVectors = 2;

/// Which part of a product is needed, in blocks of rows.
enum class Part {
  kAll,
  kLowerDepth,   ///< A is lower triangular: row i needs depth <= i
  kUpperDepth,   ///< A is upper triangular: row i needs depth >= i
  kLowerResult,  ///< of row i, only columns <= i are wanted (others of its block may be written)
};

/// C = diag(scale) C + A B, or A B without scale.
/// A(i, t) = a[i * a_row + t * a_depth]; B [depth, cols], C [rows, cols] row-major, 64-byte aligned rows;
/// cols is a multiple of the lanes. scale(i) = scale[i * scale_stride].
template <class T>
struct Product {
  const T* a;
  int64_t a_row, a_depth;
  const T* b;
  int64_t b_row;
  T* c;
  int64_t c_row;
  int64_t rows, cols, depth;
  const T* scale = nullptr;
  int64_t scale_stride = 0;
  Part part = Part::kAll;
};

template <class T>
inline constexpr T kOne = 1;

/// Calls f(integral_constant<rows>, first_row) for blocks that cover [0, rows): full tiles, then 4, 2, 1.
template <class F>
HWY_INLINE void for_row_blocks(int64_t rows, F f) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) f(std::integral_constant<int, kTileRows>(), i);
  if (kTileRows > 4 && ((rows - i) & 4)) f(std::integral_constant<int, 4>(), i), i += 4;
  if ((rows - i) & 2) f(std::integral_constant<int, 2>(), i), i += 2;
  if ((rows - i) & 1) f(std::integral_constant<int, 1>(), i);
}

/// The same blocks from the last to the first.
template <class F>
HWY_INLINE void for_row_blocks_reversed(int64_t rows, F f) {
  int64_t i = rows;
  const int64_t rest = rows % kTileRows;
  if (rest & 1) i -= 1, f(std::integral_constant<int, 1>(), i);
  if (rest & 2) i -= 2, f(std::integral_constant<int, 2>(), i);
  if (rest & 4) i -= 4, f(std::integral_constant<int, 4>(), i);
  while (i > 0) i -= kTileRows, f(std::integral_constant<int, kTileRows>(), i);
}

/// acc += A[rows of the tile, first..last) B[first..last, columns of the tile).
template <int kRows, int kVectors, class T>
HWY_INLINE void accumulate(const T* HWY_RESTRICT a, int64_t a_row, int64_t a_depth, const T* HWY_RESTRICT b,
                           int64_t b_row, int64_t first, int64_t last,
                           hn::Vec<Tag<T>> (&acc)[kRows][kVectors]) {
  const Tag<T> d;
  for (int64_t t = first; t < last; ++t) {
    hn::Vec<Tag<T>> row[kVectors];
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) row[j] = hn::Load(d, b + t * b_row + j * lanes<T>());
    PRISM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i * a_row + t * a_depth]);
      PRISM_UNROLL
      for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(factor, row[j], acc[i][j]);
    }
  }
}

template <int kRows, int kVectors, class T>
HWY_INLINE void product_tile(const Product<T>& p, int64_t i0, int64_t j0, int64_t first, int64_t last) {
  const Tag<T> d;
  hn::Vec<Tag<T>> acc[kRows][kVectors];
  T* const c = p.c + i0 * p.c_row + j0;
  PRISM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j)
      acc[i][j] = p.scale ? hn::Mul(hn::Set(d, p.scale[(i0 + i) * p.scale_stride]),
                                    hn::Load(d, c + i * p.c_row + j * lanes<T>()))
                          : hn::Zero(d);
  }
  accumulate<kRows, kVectors>(p.a + i0 * p.a_row, p.a_row, p.a_depth, p.b + j0, p.b_row, first, last, acc);
  PRISM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) hn::Store(acc[i][j], d, c + i * p.c_row + j * lanes<T>());
  }
}

/// One panel of kVectors vectors of columns, from column j0.
template <int kVectors, class T>
HWY_INLINE void product_panel(const Product<T>& p, int64_t j0) {
  for_row_blocks(p.rows, [&](auto rows, int64_t i0) {
    constexpr int kRows = decltype(rows)::value;
    if (p.part == Part::kLowerResult && j0 >= i0 + kRows) return;
    const int64_t first = p.part == Part::kUpperDepth ? i0 : 0;
    const int64_t last = p.part == Part::kLowerDepth ? i0 + kRows : p.depth;
    product_tile<kRows, kVectors>(p, i0, j0, first, last);
  });
}

template <class T>
HWY_NOINLINE void multiply(const Product<T>& p) {
  constexpr int64_t kPanel = kTileVectors * lanes<T>();
  int64_t j = 0;
  for (; j + kPanel <= p.cols; j += kPanel) product_panel<kTileVectors>(p, j);
  for (; j < p.cols; j += lanes<T>()) product_panel<1>(p, j);
}

/// Solves (I - N) X = B in place, N [rows, rows] strictly lower triangular with N(i, j) = n[i * n_row + j];
/// or (I - N^T) X = B when kTransposed. x [rows, cols] as in Product.
template <bool kTransposed, int kRows, int kVectors, class T>
HWY_INLINE void solve_tile(const T* n, int64_t n_row, T* x, int64_t x_row, int64_t rows, int64_t i0,
                           int64_t j0) {
  const Tag<T> d;
  hn::Vec<Tag<T>> acc[kRows][kVectors];
  PRISM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::Load(d, x + (i0 + i) * x_row + j0 + j * lanes<T>());
  }
  if constexpr (kTransposed)
    accumulate<kRows, kVectors>(n + i0, 1, n_row, x + j0, x_row, i0 + kRows, rows, acc);
  else
    accumulate<kRows, kVectors>(n + i0 * n_row, n_row, 1, x + j0, x_row, 0, i0, acc);
  const T* const corner = n + i0 * n_row + i0;
  PRISM_UNROLL
  for (int s = 1; s < kRows; ++s) {
    PRISM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (i < s) continue;
      // Row s - 1 (from the end when transposed) is known; take its share out of the rows that follow it.
      const int known = kTransposed ? kRows - s : s - 1, row = kTransposed ? kRows - 1 - i : i;
      const auto factor = hn::Set(d, kTransposed ? corner[known * n_row + row] : corner[row * n_row + known]);
      PRISM_UNROLL
      for (int j = 0; j < kVectors; ++j) acc[row][j] = hn::MulAdd(factor, acc[known][j], acc[row][j]);
    }
  }
  PRISM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    PRISM_UNROLL
    for (int j = 0; j < kVectors; ++j) hn::Store(acc[i][j], d, x + (i0 + i) * x_row + j0 + j * lanes<T>());
  }
}

template <bool kTransposed, class T>
HWY_NOINLINE void solve(const T* n, int64_t n_row, T* x, int64_t x_row, int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = kTileVectors * lanes<T>();
  const auto panel = [&](auto vectors, int64_t j0) {
    const auto tile = [&](auto block, int64_t i0) {
      solve_tile<kTransposed, decltype(block)::value, decltype(vectors)::value>(n, n_row, x, x_row, rows, i0,
                                                                                j0);
    };
    if constexpr (kTransposed)
      for_row_blocks_reversed(rows, tile);
    else
      for_row_blocks(rows, tile);
  };
  int64_t j = 0;
  for (; j + kPanel <= cols; j += kPanel) panel(std::integral_constant<int, kTileVectors>(), j);
  for (; j < cols; j += lanes<T>()) panel(std::integral_constant<int, 1>(), j);
}

/// Transposes one square block of 16-byte rows.
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_block(const float* HWY_RESTRICT from, int64_t from_row, float* HWY_RESTRICT to,
                                int64_t to_row) {
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  const auto r0 = hn::Load(d, from), r1 = hn::Load(d, from + from_row), r2 = hn::Load(d, from + 2 * from_row),
             r3 = hn::Load(d, from + 3 * from_row);
  const auto a = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto b = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto e = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto f = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, a, b)), d, to);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, a, b)), d, to + to_row);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, e, f)), d, to + 2 * to_row);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, e, f)), d, to + 3 * to_row);
}
HWY_INLINE void transpose_block(const double* HWY_RESTRICT from, int64_t from_row, double* HWY_RESTRICT to,
                                int64_t to_row) {
  const hn::CappedTag<double, 2> d;
  const auto r0 = hn::Load(d, from), r1 = hn::Load(d, from + from_row);
  hn::Store(hn::InterleaveLower(d, r0, r1), d, to);
  hn::Store(hn::InterleaveUpper(d, r0, r1), d, to + to_row);
}
#endif

/// to[c * to_row + r] = from[r * from_row + c] for r < rows, c < cols; both are rounded up to a block of 16
/// bytes, and both matrices must have room for that.
template <class T>
HWY_NOINLINE void transpose(const T* HWY_RESTRICT from, int64_t from_row, int64_t rows, int64_t cols,
                            T* HWY_RESTRICT to, int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) to[c * to_row + r] = from[r * from_row + c];
#else
  constexpr int64_t kBlock = 16 / sizeof(T);
  for (int64_t r = 0; r < rows; r += kBlock)
    for (int64_t c = 0; c < cols; c += kBlock)
      transpose_block(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
