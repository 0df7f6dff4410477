// A row is read twice: once for its length, once, from the cache, to be scaled.
#include "prism/kernels/l2norm.h"

#include "kernels/common/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/l2norm/l2norm.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h first: it compiles this file once a target.
#include <cmath>

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class Storage>
HWY_INLINE RealOf<Storage> row_product(const Storage* a, const Storage* b, int64_t width) {
  using T = RealOf<Storage>;
  const Tag<T> d;
  auto sum = hn::Zero(d);
  for_columns(width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    sum = hn::MulAdd(load_columns<kWhole>(a, c), load_columns<kWhole>(b, c), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// to = x * scale + y * y_scale; y may be null.
template <class T, class Storage>
HWY_INLINE void combine_rows(const Storage* x, T scale, const Storage* y, T y_scale, int64_t width,
                             Storage* to) {
  const Tag<T> d;
  const auto factor = hn::Set(d, scale), y_factor = hn::Set(d, y_scale);
  for_columns(width, lanes<T>(), [&](auto whole, Columns c) {
    constexpr bool kWhole = decltype(whole)::value;
    auto result = hn::Mul(load_columns<kWhole>(x, c), factor);
    if (y) result = hn::MulAdd(load_columns<kWhole>(y, c), y_factor, result);
    store_columns<kWhole, T>(result, to, c);
  });
}

/// Tokens [begin, end): forward without dy, else backward.
void l2norm_tokens(const L2NormShape& shape, const View& x, const View* dy, void* to, int64_t begin,
                   int64_t end) {
  with_storage(shape.dtype, [&](auto* storage) {
    using Storage = std::remove_pointer_t<decltype(storage)>;
    using T = RealOf<Storage>;
    for (int64_t row = begin * shape.heads; row < end * shape.heads; ++row) {
      const int64_t token = row / shape.heads, head = row % shape.heads, width = shape.width;
      const Storage* const in = row_of<Storage>(x, token, 0, head);
      Storage* const out = static_cast<Storage*>(to) + row * width;
      const T inverse = T(1) / std::sqrt(row_product(in, in, width) + static_cast<T>(shape.eps));
      if (!dy) {
        combine_rows<T>(in, inverse, static_cast<const Storage*>(nullptr), T(0), width, out);
        continue;
      }
      const Storage* const upstream = row_of<Storage>(*dy, token, 0, head);
      const T along = row_product(in, upstream, width);
      combine_rows<T>(upstream, inverse, in, -along * inverse * inverse * inverse, width, out);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/parallel.h"

namespace prism::kernels {

HWY_EXPORT(l2norm_tokens);

namespace {

void run(const L2NormShape& shape, const View& x, const View* dy, void* to) {
  const double work = 2.0 * static_cast<double>(shape.tokens) * shape.heads * shape.width;
  parallel_blocks(shape.tokens, 64, work, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(l2norm_tokens)(shape, x, dy, to, begin, end);
  });
}

}  // namespace

void l2norm_forward(const L2NormShape& shape, const View& x, void* y) { run(shape, x, nullptr, y); }

void l2norm_backward(const L2NormShape& shape, const View& x, const View& dy, void* dx) {
  run(shape, x, &dy, dx);
}

}  // namespace prism::kernels
#endif
