// Reads v, u, p, beta (and the upstream gradients); writes w, delta, residual, or dv, du, dp, dbeta.
// One warp a (token, head): lanes take the channels 32 apart, so every access of a warp is one contiguous
// line. Steps l = 1..L run in registers; backward recomputes r_1..r_L and walks them from the last to the
// first. dbeta is a sum over the width: each lane's channels in order, then a butterfly over the warp;
// bit-equal repeats. Nobody waits for anybody: warps are independent.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "prism/kernels/prism_refine_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kWarp = 32, kWarpsPerBlock = 8;

__device__ float load(const float* p) { return *p; }
__device__ double load(const double* p) { return *p; }
__device__ float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ void store(float* p, float x) { *p = x; }
__device__ void store(double* p, double x) { *p = x; }
__device__ void store(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }

template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

template <class C>
__device__ C gelu(C x) {
  return C(0.5) * x * (C(1) + erf(x * C(0.70710678118654752440)));
}

/// d gelu / dx = Phi(x) + x phi(x).
template <class C>
__device__ C gelu_slope(C x) {
  const C cumulative = C(0.5) * (C(1) + erf(x * C(0.70710678118654752440)));
  return cumulative + x * C(0.39894228040143267794) * exp(C(-0.5) * x * x);
}

template <class C>
__device__ C phi(C x, Nonlinearity kind) {
  return kind == Nonlinearity::kGelu ? gelu(x) : x;
}
template <class C>
__device__ C phi_slope(C x, Nonlinearity kind) {
  return kind == Nonlinearity::kGelu ? gelu_slope(x) : C(1);
}

/// The element of a view, or `absent` where it has no data.
template <class T, class C>
__device__ C at(const View& view, int64_t t, int64_t l, int64_t h, int64_t c, C absent) {
  if (!view.data) return absent;
  const T* base = static_cast<const T*>(view.data);
  return load(base + t * view.token_stride + l * view.step_stride + h * view.head_stride + c);
}

template <class T>
__device__ void put(void* out, int64_t index, typename Compute<T>::type value) {
  if (out) store(static_cast<T*>(out) + index, value);
}

template <class T, class G>
__global__ void forward_kernel(PrismRefineShape shape, PrismRefineInputs in, void* w, void* delta,
                               void* residual) {
  using C = typename Compute<T>::type;
  const int64_t row = blockIdx.x * int64_t{kWarpsPerBlock} + threadIdx.y;
  if (row >= shape.tokens * shape.heads) return;
  const int64_t t = row / shape.heads, h = row % shape.heads, L = shape.steps;
  for (int64_t c = threadIdx.x; c < shape.width; c += kWarp) {
    const C start = at<T, C>(in.v, t, 0, h, c, 0) - at<T, C>(in.u, t, 0, h, c, 0);
    C r = start;
    for (int64_t l = 0; l < L; ++l) {
      const C d = phi(at<T, C>(in.p, t, l, h, c, 1) * r, shape.nonlinearity);
      const int64_t index = ((t * L + l) * shape.heads + h) * shape.width + c;
      put<T>(delta, index, d);
      put<T>(w, index, C(at<G, C>(in.beta, t, l, h, 0, 1)) * d);
      r = shape.residual == Residual::kSubtract ? r - d : start;
    }
    put<T>(residual, (t * shape.heads + h) * shape.width + c, r);
  }
}

template <class C>
__device__ C warp_sum(C x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

template <class T, class G>
__global__ void backward_kernel(PrismRefineShape shape, PrismRefineInputs in, View dw, View ddelta,
                                View dresidual, PrismRefineGradients out) {
  using C = typename Compute<T>::type;
  const int64_t row = blockIdx.x * int64_t{kWarpsPerBlock} + threadIdx.y;
  if (row >= shape.tokens * shape.heads) return;
  const int64_t t = row / shape.heads, h = row % shape.heads, L = shape.steps;
  const bool subtract = shape.residual == Residual::kSubtract;
  C dbeta[kMaxRefineSteps] = {};
  for (int64_t c = threadIdx.x; c < shape.width; c += kWarp) {
    C r[kMaxRefineSteps + 1];
    r[0] = at<T, C>(in.v, t, 0, h, c, 0) - at<T, C>(in.u, t, 0, h, c, 0);
    for (int l = 0; l < L; ++l)
      r[l + 1] = subtract ? r[l] - phi(at<T, C>(in.p, t, l, h, c, 1) * r[l], shape.nonlinearity) : r[0];
    C dr = at<T, C>(dresidual, t, 0, h, c, 0),
      dr_first = 0;  // dr_first: through r_l = r_1 when nothing is subtracted
    for (int l = static_cast<int>(L) - 1; l >= 0; --l) {
      const C p = at<T, C>(in.p, t, l, h, c, 1), upstream = at<T, C>(dw, t, l, h, c, 0);
      C dd = C(at<G, C>(in.beta, t, l, h, 0, 1)) * upstream + at<T, C>(ddelta, t, l, h, c, 0);
      dbeta[l] += upstream * phi(p * r[l], shape.nonlinearity);
      if (subtract) dd -= dr;
      const C dx = dd * phi_slope(p * r[l], shape.nonlinearity);
      put<T>(out.dp, ((t * L + l) * shape.heads + h) * shape.width + c, dx * r[l]);
      if (subtract)
        dr += dx * p;
      else
        dr_first += dx * p;
    }
    put<T>(out.dv, row * shape.width + c, dr + dr_first);
    put<T>(out.du, row * shape.width + c, -(dr + dr_first));
  }
  if (!out.dbeta) return;
  for (int l = 0; l < L; ++l) {
    const C sum = warp_sum(dbeta[l]);
    if (threadIdx.x == 0) static_cast<G*>(out.dbeta)[(t * L + l) * shape.heads + h] = static_cast<G>(sum);
  }
}

/// Calls `launch` with value objects of the storage and the gate type.
template <class Launch>
const char* dispatch(Scalar dtype, Launch launch) {
  if (dtype == Scalar::kFloat64)
    launch(double{}, double{});
  else if (dtype == Scalar::kFloat32)
    launch(float{}, float{});
  else
    launch(__nv_bfloat16{}, float{});
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

dim3 grid(const PrismRefineShape& shape) {
  return dim3(static_cast<unsigned>((shape.tokens * shape.heads + kWarpsPerBlock - 1) / kWarpsPerBlock));
}

}  // namespace

const char* prism_refine_forward(const PrismRefineShape& shape, const PrismRefineInputs& in, void* w,
                                 void* delta, void* residual, CUstream_st* stream) {
  if (shape.tokens * shape.heads == 0) return nullptr;
  return dispatch(shape.dtype, [&](auto storage, auto gate) {
    forward_kernel<decltype(storage), decltype(gate)>
        <<<grid(shape), dim3(kWarp, kWarpsPerBlock), 0, stream>>>(shape, in, w, delta, residual);
  });
}

const char* prism_refine_backward(const PrismRefineShape& shape, const PrismRefineInputs& in, const View& dw,
                                  const View& ddelta, const View& dresidual, const PrismRefineGradients& out,
                                  CUstream_st* stream) {
  if (shape.tokens * shape.heads == 0) return nullptr;
  return dispatch(shape.dtype, [&](auto storage, auto gate) {
    backward_kernel<decltype(storage), decltype(gate)>
        <<<grid(shape), dim3(kWarp, kWarpsPerBlock), 0, stream>>>(shape, in, dw, ddelta, dresidual, out);
  });
}

}  // namespace prism::kernels::cuda
