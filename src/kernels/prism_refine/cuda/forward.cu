// Reads v, u, p, beta; writes w and, on request, delta and the last residual. A few threads a (token, head),
// each with 16 bytes of every tensor at a time; all L steps run in registers.
#include "kernels/prism_refine/cuda/refine.cuh"

namespace prism::kernels::cuda {
namespace {

using namespace refine;

struct ForwardCall {
  PrismRefineShape shape;
  Strided v, u, p, beta, w, delta, residual;
};

template <class Chosen>
__global__ void __launch_bounds__(kBlock) forward_kernel(ForwardCall call, Rows rows) {
  using T = typename Chosen::Element;
  using C = Arithmetic<T>;
  constexpr int N = Chosen::kVector, L = Chosen::kStepCount;
  constexpr bool kUsual = Chosen::kIsUsual;
  const Settings<kUsual> settings{call.shape};
  const Place at(rows);
  if (!at.exists) return;
  C beta[L];
#pragma unroll
  for (int l = 0; l < L; ++l) beta[l] = gate_of<T>(call.beta, at.t, l, at.h);
  for (uint32_t c = at.lane * N; c < rows.width; c += N << rows.log2_lanes) {
    const Vector<T, N> v = channels<T, N, true>(call.v, at.t, 0, at.h, c, 0),
                       u = channels<T, N, kUsual>(call.u, at.t, 0, at.h, c, 0);
    Vector<T, N> p[L];
    C written[L][N], steps[L][N], last[N];
#pragma unroll
    for (int l = 0; l < L; ++l) p[l] = channels<T, N, kUsual>(call.p, at.t, l, at.h, c, 1);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const C start = widen(v.at[i]) - widen(u.at[i]);
      C r = start;
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const C d = settings.activate(widen(p[l].at[i]) * r).value;
        steps[l][i] = d;
        written[l][i] = beta[l] * d;
        r = settings.subtract() ? r - d : start;
      }
      last[i] = r;
    }
#pragma unroll
    for (int l = 0; l < L; ++l) {
      put<T>(written[l], call.w, at.t, l, at.h, c);
      if (!kUsual) put<T>(steps[l], call.delta, at.t, l, at.h, c);
    }
    if (!kUsual) put<T>(last, call.residual, at.t, 0, at.h, c);
  }
}

}  // namespace

const char* prism_refine_forward(const PrismRefineShape& shape, const PrismRefineInputs& in, void* w,
                                 void* delta, void* residual, CUstream_st* stream) {
  Holder holder;
  const auto output = [&](void* data, int64_t steps) {
    return holder.hold(data, steps, shape.heads, shape.width);
  };
  const ForwardCall call{.shape = shape,
                         .v = holder.hold(in.v),
                         .u = holder.hold(in.u),
                         .p = holder.hold(in.p),
                         .beta = holder.hold(in.beta),
                         .w = output(w, shape.steps),
                         .delta = output(delta, shape.steps),
                         .residual = output(residual, 1)};
  if (!holder.fits()) return "a stride does not fit 32 bits";
  const auto aligned = [&]<class T>(T) {
    return is_aligned<T>(in.v) && is_aligned<T>(in.u) && is_aligned<T>(in.p) && is_aligned(w) &&
           is_aligned(delta) && is_aligned(residual);
  };
  const bool usual = in.u.data && in.p.data && in.beta.data && w && !delta && !residual;
  return with_variant(shape, usual, aligned, [&]<class Chosen>(Chosen) {
    const Rows rows(shape, Chosen::kVector);
    forward_kernel<Chosen><<<rows.blocks(), kBlock, 0, stream>>>(call, rows);
  });
}

}  // namespace prism::kernels::cuda
