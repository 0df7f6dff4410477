// The backward's buffers, and the gradients of layer norm and of the inner gradient. Compiled once a target.
#if defined(PRISM_KERNELS_TTT_LINEAR_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRISM_KERNELS_TTT_LINEAR_GRADIENT_INL_H_
#undef PRISM_KERNELS_TTT_LINEAR_GRADIENT_INL_H_
#else
#define PRISM_KERNELS_TTT_LINEAR_GRADIENT_INL_H_
#endif

#include "kernels/ttt_linear/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prism::kernels {
namespace HWY_NAMESPACE {

/// Sums over tokens of the gradients of a head's norm.
template <class T>
struct TttNormGradient {
  T *weight, *bias;
};

template <class T>
struct TttBackwardBuffers {
  TttBackwardBuffers(Carver& memory, const TttSizes<T>& z) : norm(memory, z) {
    dnorm = {memory.take<T>(z.k_row), memory.take<T>(z.k_row)};
    xhat_q = memory.take<T>(z.k_row);
    lr = memory.take<T>(z.C);
    stats = memory.take<InnerStats<T>>(z.C);
    for (T** tokens :
         {&q, &k, &v, &d_o, &xhat, &h, &plain, &g, &z_q, &spread, &dspread, &dg, &dz, &dk, &derror, &scaled})
      *tokens = memory.take<T>(z.token_size);
    keys_t = memory.take<T>(z.turned_size);
    gradients_t = memory.take<T>(z.turned_size);
    scores = memory.take<T>(z.score_size);
    dscores = memory.take<T>(z.score_size);
    for (T** state : {&W, &dW, &dsum, &turned}) *state = memory.take<T>(z.state_size);
    size = memory.used();
  }
  TttNorm<T> norm;
  TttNormGradient<T> dnorm;
  InnerStats<T>* stats;
  T *xhat_q, *lr;
  T *q, *k, *v, *d_o;         // [C, K]; d_o becomes dq
  T *xhat, *h, *plain, *g;    // of the inner gradient; plain: without lr
  T *z_q, *spread, *dspread;  // z_q becomes its gradient; spread = scores g
  T *dg, *dz, *dk, *derror;   // dz holds z first; derror is the gradient of LN(z) - (v - k)
  T* scaled;                  // keys times a place's step
  T *keys_t, *gradients_t;    // [K+1, C], [K, C]
  T *scores, *dscores;        // [C, C]
  T *W, *dW, *dsum, *turned;  // [K+1, K]; turned: one of them transposed
  size_t size;
};

/// Of y = LN(z) with upstream dy: adds to dnorm, writes dz (which may be z).
template <class T>
HWY_INLINE void layer_norm_gradient(const T* z, const T* dy, const TttNorm<T>& norm, const TttSizes<T>& s,
                                    T* xhat, const TttNormGradient<T>& dnorm, T* dz) {
  const Tag<T> d;
  const T r = normalise(z, norm.ones, s, xhat);
  auto sum = hn::Zero(d), sum_x = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto x = hn::Load(d, xhat + c), up = hn::Load(d, dy + c);
    hn::Store(hn::MulAdd(up, x, hn::Load(d, dnorm.weight + c)), d, dnorm.weight + c);
    hn::Store(hn::Add(up, hn::Load(d, dnorm.bias + c)), d, dnorm.bias + c);
    const auto dx = hn::Mul(up, hn::Load(d, norm.weight + c));
    sum = hn::Add(sum, dx);
    sum_x = hn::MulAdd(dx, x, sum_x);
  }
  const auto mean = hn::Set(d, sum_of<T>(sum) / T(s.K)), mean_x = hn::Set(d, sum_of<T>(sum_x) / T(s.K));
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto dx = hn::Mul(hn::Load(d, dy + c), hn::Load(d, norm.weight + c));
    const auto centred = hn::NegMulAdd(hn::Load(d, xhat + c), mean_x, hn::Sub(dx, mean));
    hn::Store(hn::Mul(hn::Mul(centred, hn::Set(d, r)), hn::Load(d, norm.ones + c)), d, dz + c);
  }
}

/// Of token j's inner gradient g with upstream u = lr dg: dz and derror; adds derror to dk, and to dnorm.
/// With g = r (h - mean(h) - xhat mean(h xhat)), h = w e, e = w xhat + b - (v - k):
///   dh = r (u - mean(u) - xhat mean(u xhat)),   de = w dh,   dw += dh e + de xhat,   db += de
///   dxhat = w de - r (mean(h xhat) u + mean(u xhat) h)
///   dz = r (dxhat - mean(dxhat) - xhat (mean(dxhat xhat) + mean(u g)))
template <class T>
HWY_INLINE void inner_gradient_gradient(const TttBackwardBuffers<T>& at, const TttSizes<T>& s, int64_t j) {
  const Tag<T> d;
  const int64_t row = j * s.k_row;
  const T *const x = at.xhat + row, *const h = at.h + row, *const g = at.plain + row, *const dg = at.dg + row;
  const T r = at.stats[j].r, K = T(s.K);
  const auto lr = hn::Set(d, at.lr[j]);
  auto sum_u = hn::Zero(d), sum_ux = hn::Zero(d), sum_ug = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto u = hn::Mul(hn::Load(d, dg + c), lr);
    sum_u = hn::Add(sum_u, u);
    sum_ux = hn::MulAdd(u, hn::Load(d, x + c), sum_ux);
    sum_ug = hn::MulAdd(u, hn::Load(d, g + c), sum_ug);
  }
  const T mean_ux = sum_of<T>(sum_ux) / K, mean_ug = sum_of<T>(sum_ug) / K;
  const auto mean_u = hn::Set(d, sum_of<T>(sum_u) / K), ux = hn::Set(d, mean_ux);
  const auto from_u = hn::Set(d, -r * at.stats[j].hx), from_h = hn::Set(d, -r * mean_ux);
  auto sum = hn::Zero(d), sum_x = hn::Zero(d);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto u = hn::Mul(hn::Load(d, dg + c), lr), xc = hn::Load(d, x + c),
               ones = hn::Load(d, at.norm.ones + c);
    const auto w = hn::Load(d, at.norm.weight + c);
    const auto target = hn::Sub(hn::Load(d, at.v + row + c), hn::Load(d, at.k + row + c));
    const auto e = hn::Mul(hn::Sub(hn::MulAdd(w, xc, hn::Load(d, at.norm.bias + c)), target), ones);
    const auto dh = hn::Mul(hn::Mul(hn::NegMulAdd(xc, ux, hn::Sub(u, mean_u)), hn::Set(d, r)), ones);
    const auto de = hn::Mul(dh, w);
    const auto dw = hn::MulAdd(dh, e, hn::Mul(de, xc));
    hn::Store(hn::Add(hn::Load(d, at.dnorm.weight + c), dw), d, at.dnorm.weight + c);
    hn::Store(hn::Add(hn::Load(d, at.dnorm.bias + c), de), d, at.dnorm.bias + c);
    hn::Store(de, d, at.derror + row + c);
    hn::Store(hn::Add(hn::Load(d, at.dk + row + c), de), d, at.dk + row + c);
    const auto dx = hn::MulAdd(from_h, hn::Load(d, h + c), hn::MulAdd(from_u, u, hn::Mul(de, w)));
    hn::Store(dx, d, at.dz + row + c);
    sum = hn::Add(sum, dx);
    sum_x = hn::MulAdd(dx, xc, sum_x);
  }
  const auto mean = hn::Set(d, sum_of<T>(sum) / K), mean_x = hn::Set(d, sum_of<T>(sum_x) / K + mean_ug);
  for (int64_t c = 0; c < s.cols; c += lanes<T>()) {
    const auto centred =
        hn::NegMulAdd(hn::Load(d, x + c), mean_x, hn::Sub(hn::Load(d, at.dz + row + c), mean));
    hn::Store(hn::Mul(hn::Mul(centred, hn::Set(d, r)), hn::Load(d, at.norm.ones + c)), d, at.dz + row + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace prism::kernels
HWY_AFTER_NAMESPACE();
#endif
