// The exact (erf) GELU and its derivative. Compiled once a target.
#if defined(PRISM_KERNELS_COMMON_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_COMMON_GELU_INL_H_
#undef PRISM_KERNELS_COMMON_GELU_INL_H_
#else
#define PRISM_KERNELS_COMMON_GELU_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

template <class T>
struct Gelu {
  hn::Vec<Tag<T>> value, slope;
};

/// x Phi(x) and Phi(x) + x phi(x). The upper tail of the normal distribution at a = |x| is
/// exp(-a^2 / 2) P(t) / (1 + sqrt(2) a) with t = (a - c) / (a + c), c = 2 sqrt(2): P, fitted at Chebyshev
/// nodes to exp(z^2) erfc(z) (1 + 2 z) / 2 on z <= 9.6, is within 1.4e-8. Small values keep their relative
/// accuracy, because neither tail is taken from 1 and a^2's rounding error is put back into the exponential.
HWY_INLINE Gelu<float> gelu(hn::Vec<Tag<float>> x) {
  const Tag<float> d;
  constexpr float kCoefficients[] = {
      -2.067709679e-04f, -6.246027417e-04f, 6.599201516e-04f,  4.324263045e-03f,  -4.029857936e-03f,
      -2.710451540e-02f, 8.202753531e-02f,  -8.301549352e-02f, -4.638198327e-02f, 6.384891935e-01f};
  constexpr float kCentre = 2.82842712f, kRoot2 = 1.41421356f, kDensity = 0.398942280f;
  const auto one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f), centre = hn::Set(d, kCentre);
  const auto a = hn::Abs(x);
  const auto t = hn::Div(hn::Sub(a, centre), hn::Add(a, centre));
  auto p = hn::Set(d, kCoefficients[0]);
  PRISM_UNROLL
  for (int i = 1; i < 10; ++i) p = hn::MulAdd(p, t, hn::Set(d, kCoefficients[i]));
  const auto square = hn::Mul(a, a);
  const auto lost = hn::Mul(half, hn::MulSub(a, a, square));
  const auto rough = hn::Exp(d, hn::Neg(hn::Mul(half, square)));
  // Beyond the range of exp the tail is zero; there a^2 may be infinite and `lost` NaN.
  const auto gauss = hn::IfThenElseZero(hn::Gt(rough, hn::Zero(d)), hn::NegMulAdd(lost, rough, rough));
  const auto tail = hn::Div(hn::Mul(gauss, p), hn::MulAdd(hn::Set(d, kRoot2), a, one));
  const auto below = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  const auto density = hn::Mul(hn::Set(d, kDensity), gauss);
  return {hn::Mul(x, below), hn::MulAdd(x, density, below)};
}

HWY_INLINE Gelu<double> gelu(hn::Vec<Tag<double>> x) {
  const Tag<double> d;
  double in[lanes<double>()], value[lanes<double>()], slope[lanes<double>()];
  hn::StoreU(x, d, in);
  for (int64_t i = 0; i < lanes<double>(); ++i) {
    constexpr double kRootHalf = 0.70710678118654752440, kDensity = 0.39894228040143267794;
    const double below = 0.5 * std::erfc(-kRootHalf * in[i]);
    value[i] = in[i] * below;
    slope[i] = below + in[i] * kDensity * std::exp(-0.5 * in[i] * in[i]);
  }
  return {hn::LoadU(d, value), hn::LoadU(d, slope)};
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
