// A row is read once for its mean square and again, from the cache, for the result.
#include "prism/kernels/rms_norm.h"

#include "kernels/common/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include <cmath>

#include "kernels/common/silu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// One row of a call; a null weight or gate stands for ones.
template <class Storage>
struct NormRow {
  using T = RealOf<Storage>;
  using Vector = hn::Vec<Tag<T>>;
  NormRow(const RmsNormShape& shape, const RmsNormInputs& in, int64_t token, int64_t head)
      : width(shape.width),
        x(row_of<Storage>(in.x, token, 0, head)),
        gate(in.gate.data ? row_of<Storage>(in.gate, token, 0, head) : nullptr),
        weight(static_cast<const Storage*>(in.weight)) {
    const Tag<T> d;
    auto sum = hn::Zero(d);
    for_columns(width, lanes<T>(), [&](auto whole, Columns c) {
      const auto v = load_columns<decltype(whole)::value>(x, c);
      sum = hn::MulAdd(v, v, sum);
    });
    inverse = T(1) / std::sqrt(hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<T>(width) +
                               static_cast<T>(shape.eps));
  }
  template <bool kWhole>
  HWY_INLINE Vector weights(Columns c) const {
    return weight ? load_columns<kWhole>(weight, c) : hn::Set(Tag<T>(), T(1));
  }

  int64_t width;
  const Storage *x, *gate, *weight;
  T inverse;
};

template <class Storage>
HWY_INLINE void norm_row(const NormRow<Storage>& row, Storage* y) {
  using T = RealOf<Storage>;
  const auto inverse = hn::Set(Tag<T>(), row.inverse);
  for_columns(row.width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    auto result = hn::Mul(hn::Mul(load_columns<kWhole>(row.x, c), inverse), row.template weights<kWhole>(c));
    if (row.gate) result = hn::Mul(result, silu<T>(load_columns<kWhole>(row.gate, c)).value);
    store_columns<kWhole, T>(result, y, c);
  });
}

/// With n = x inverse and u = dy * weight * SiLU(gate): dx = inverse (u - n mean(u n)). Adds to dweight.
template <class Storage>
HWY_INLINE void norm_gradient_row(const NormRow<Storage>& row, const Storage* dy, Storage* dx, Storage* dgate,
                                  RealOf<Storage>* dweight) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  const auto inverse = hn::Set(d, row.inverse);
  auto along = hn::Zero(d);
  for_columns(row.width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    const auto n = hn::Mul(load_columns<kWhole>(row.x, c), inverse), weight = row.template weights<kWhole>(c);
    auto up = load_columns<kWhole>(dy, c);
    if (row.gate) {
      const auto gate = silu<T>(load_columns<kWhole>(row.gate, c));
      if (dgate) store_columns<kWhole, T>(hn::Mul(hn::Mul(hn::Mul(up, n), weight), gate.slope), dgate, c);
      up = hn::Mul(up, gate.value);
    }
    const auto share = hn::Mul(up, n);
    if (dweight) store_columns<kWhole, T>(hn::Add(load_columns<kWhole>(dweight, c), share), dweight, c);
    along = hn::MulAdd(share, weight, along);
  });
  if (!dx) return;
  const auto mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, along)) / static_cast<T>(row.width));
  for_columns(row.width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    auto up = hn::Mul(load_columns<kWhole>(dy, c), row.template weights<kWhole>(c));
    if (row.gate) up = hn::Mul(up, silu<T>(load_columns<kWhole>(row.gate, c)).value);
    const auto n = hn::Mul(load_columns<kWhole>(row.x, c), inverse);
    store_columns<kWhole, T>(hn::Mul(inverse, hn::NegMulAdd(n, mean, up)), dx, c);
  });
}

void norm_tokens(const RmsNormShape& shape, const RmsNormInputs& in, void* y, int64_t begin, int64_t end) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    for (int64_t row = begin * shape.heads; row < end * shape.heads; ++row)
      norm_row(NormRow<Storage>(shape, in, row / shape.heads, row % shape.heads),
               static_cast<Storage*>(y) + row * shape.width);
  });
}

/// `dweight` is the block's partial sum, or null.
void norm_gradient_tokens(const RmsNormShape& shape, const RmsNormInputs& in, const View& dy,
                          const RmsNormGradients& out, void* dweight, int64_t begin, int64_t end) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    for (int64_t row = begin * shape.heads; row < end * shape.heads; ++row) {
      const int64_t token = row / shape.heads, head = row % shape.heads;
      const auto at = [&](void* to) { return to ? static_cast<Storage*>(to) + row * shape.width : nullptr; };
      norm_gradient_row(NormRow<Storage>(shape, in, token, head), row_of<Storage>(dy, token, 0, head),
                        at(out.dx), at(out.dgate), static_cast<RealOf<Storage>*>(dweight));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"

namespace prism::kernels {

HWY_EXPORT(norm_tokens);
HWY_EXPORT(norm_gradient_tokens);

namespace {

constexpr int64_t kTokens = 64;  // a block
double work_of(const RmsNormShape& shape) {
  return 10.0 * static_cast<double>(shape.tokens) * shape.heads * shape.width;
}

}  // namespace

void rms_norm_forward(const RmsNormShape& shape, const RmsNormInputs& in, void* y) {
  parallel_blocks(shape.tokens, kTokens, work_of(shape), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_tokens)(shape, in, y, begin, end);
  });
}

void rms_norm_backward(const RmsNormShape& shape, const RmsNormInputs& in, const View& dy,
                       const RmsNormGradients& out) {
  PartialSums sums(shape.dtype, out.dweight ? (shape.tokens + kTokens - 1) / kTokens : 0, shape.width);
  parallel_blocks(shape.tokens, kTokens, work_of(shape), [&](int64_t begin, int64_t end) {
    void* const dweight = out.dweight ? sums.block(begin / kTokens) : nullptr;
    HWY_DYNAMIC_DISPATCH(norm_gradient_tokens)(shape, in, dy, out, dweight, begin, end);
  });
  if (out.dweight) sums.add_up(shape.dtype, 0, shape.width, out.dweight, 1);
}

}  // namespace prism::kernels
#endif
