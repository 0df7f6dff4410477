// Reads v, u, p, beta and the upstream gradients; writes dv, du, dp, dbeta. Each number's residuals and
// slopes are made again in registers and walked from the last step to the first. dbeta is a sum over the
// width: a thread's channels in order, then a butterfly over the threads of the (token, head); no atomics, so
// repeats are bit-equal.
#include "kernels/prism_refine/cuda/refine.cuh"

namespace prism::kernels::cuda {
namespace {

using namespace refine;

struct BackwardCall {
  PrismRefineShape shape;
  Strided v, u, p, beta, dw, ddelta, dresidual;
  Strided dv, du, dp, dbeta;
};

/// What one number of the width takes part in.
template <class C, int L>
struct Number {
  C start;  ///< v - u
  C p[L], dw[L], ddelta[L];
  C dresidual;
  C dp[L], dstart;  ///< results
};

/// Residuals forwards, gradients backwards; adds the number's share of dbeta.
template <class Settings, class C, int L>
__device__ void backward_of_number(const Settings& settings, const C (&beta)[L], Number<C, L>& x,
                                   C (&dbeta)[L]) {
  C r[L], slope[L], last = x.start;
#pragma unroll
  for (int l = 0; l < L; ++l) {
    r[l] = last;
    const Activation<C> d = settings.activate(x.p[l] * r[l]);
    slope[l] = d.slope;
    dbeta[l] += x.dw[l] * d.value;
    if (settings.subtract()) last -= d.value;
  }
  C dr = x.dresidual, dr_first = 0;  // dr_first: through r_l = r_1 when nothing is subtracted
#pragma unroll
  for (int l = L - 1; l >= 0; --l) {
    C dd = beta[l] * x.dw[l] + x.ddelta[l];
    if (settings.subtract()) dd -= dr;
    const C dx = dd * slope[l];
    x.dp[l] = dx * r[l];
    (settings.subtract() ? dr : dr_first) += dx * x.p[l];
  }
  x.dstart = dr + dr_first;
}

template <class Chosen>
__global__ void __launch_bounds__(kBlock, Chosen::kStepCount <= 2 ? 4 : 2)
    backward_kernel(BackwardCall call, Rows rows) {
  using T = typename Chosen::Element;
  using C = Arithmetic<T>;
  constexpr int N = Chosen::kVector, L = Chosen::kStepCount;
  constexpr bool kUsual = Chosen::kIsUsual;
  using Channels = Vector<T, N>;
  const Settings<kUsual> settings{call.shape};
  const Place at(rows);
  C beta[L], dbeta[L] = {};
#pragma unroll
  for (int l = 0; l < L; ++l) beta[l] = gate_of<T>(call.beta, at.t, l, at.h);
  for (uint32_t c = at.lane * N; at.exists && c < rows.width; c += N << rows.log2_lanes) {
    const auto load = [&]<bool kThere>(const Strided& view, int l, float absent) {
      return channels<T, N, kThere>(view, at.t, l, at.h, c, absent);
    };
    const Channels v = load.template operator()<true>(call.v, 0, 0),
                   u = load.template operator()<kUsual>(call.u, 0, 0);
    Channels p[L], dw[L], ddelta[L], dresidual;
    C dp[L][N], dv[N], du[N];
#pragma unroll
    for (int l = 0; l < L; ++l) {
      p[l] = load.template operator()<kUsual>(call.p, l, 1);
      dw[l] = load.template operator()<kUsual>(call.dw, l, 0);
      if (!kUsual) ddelta[l] = load.template operator()<false>(call.ddelta, l, 0);
    }
    if (!kUsual) dresidual = load.template operator()<false>(call.dresidual, 0, 0);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Number<C, L> x;
      x.start = widen(v.at[i]) - widen(u.at[i]);
      x.dresidual = kUsual ? C(0) : widen(dresidual.at[i]);
#pragma unroll
      for (int l = 0; l < L; ++l) {
        x.p[l] = widen(p[l].at[i]);
        x.dw[l] = widen(dw[l].at[i]);
        x.ddelta[l] = kUsual ? C(0) : widen(ddelta[l].at[i]);
      }
      backward_of_number(settings, beta, x, dbeta);
#pragma unroll
      for (int l = 0; l < L; ++l) dp[l][i] = x.dp[l];
      dv[i] = x.dstart;
      du[i] = -x.dstart;
    }
    put<T>(dv, call.dv, at.t, 0, at.h, c);
    put<T>(du, call.du, at.t, 0, at.h, c);
#pragma unroll
    for (int l = 0; l < L; ++l) put<T>(dp[l], call.dp, at.t, l, at.h, c);
  }
  if (!call.dbeta.data) return;
#pragma unroll
  for (int l = 0; l < L; ++l) {
    const C sum = sum_across(dbeta[l], 1, 1 << rows.log2_lanes);
    if (at.exists && at.lane == 0) *call.dbeta.at<C>(at.t, l, at.h, 0) = sum;
  }
}

}  // namespace

const char* prism_refine_backward(const PrismRefineShape& shape, const PrismRefineInputs& in, const View& dw,
                                  const View& ddelta, const View& dresidual, const PrismRefineGradients& out,
                                  CUstream_st* stream) {
  Holder holder;
  const auto output = [&](void* data, int64_t steps) {
    return holder.hold(data, steps, shape.heads, shape.width);
  };
  const BackwardCall call{.shape = shape,
                          .v = holder.hold(in.v),
                          .u = holder.hold(in.u),
                          .p = holder.hold(in.p),
                          .beta = holder.hold(in.beta),
                          .dw = holder.hold(dw),
                          .ddelta = holder.hold(ddelta),
                          .dresidual = holder.hold(dresidual),
                          .dv = output(out.dv, 1),
                          .du = output(out.du, 1),
                          .dp = output(out.dp, shape.steps),
                          .dbeta = holder.hold(out.dbeta, shape.steps, shape.heads, 1)};
  if (!holder.fits()) return "a stride does not fit 32 bits";
  const auto aligned = [&]<class T>(T) {
    bool all = is_aligned(out.dv) && is_aligned(out.du) && is_aligned(out.dp);
    for (const View* view : {&in.v, &in.u, &in.p, &dw, &ddelta, &dresidual})
      all = all && is_aligned<T>(*view);
    return all;
  };
  const bool usual = in.u.data && in.p.data && in.beta.data && dw.data && !ddelta.data && !dresidual.data;
  return with_variant(shape, usual, aligned, [&]<class Chosen>(Chosen) {
    const Rows rows(shape, Chosen::kVector);
    backward_kernel<Chosen><<<rows.blocks(), kBlock, 0, stream>>>(call, rows);
  });
}

}  // namespace prism::kernels::cuda
