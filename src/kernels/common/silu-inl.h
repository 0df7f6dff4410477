// SiLU and its derivative. Compiled once a target.
#if defined(PRISM_KERNELS_COMMON_SILU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_COMMON_SILU_INL_H_
#undef PRISM_KERNELS_COMMON_SILU_INL_H_
#else
#define PRISM_KERNELS_COMMON_SILU_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct Silu {
  hn::Vec<Tag<T>> value, slope;
};

/// x s and s (1 + x (1 - s)), s = 1 / (1 + exp(-x)); only exp(-|x|) is taken.
template <class T>
HWY_INLINE Silu<T> silu(hn::Vec<Tag<T>> x) {
  const Tag<T> d;
  const auto one = hn::Set(d, T(1));
  const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const auto near_one = hn::Div(one, hn::Add(one, e));
  const auto far = hn::Mul(e, near_one);
  const auto negative = hn::Lt(x, hn::Zero(d));
  const auto s = hn::IfThenElse(negative, far, near_one), rest = hn::IfThenElse(negative, near_one, far);
  return {hn::Mul(x, s), hn::Mul(s, hn::MulAdd(x, rest, one))};
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
