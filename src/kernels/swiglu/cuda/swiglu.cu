// A thread takes 16 bytes of both halves of a row, or one number of each where those do not fit.
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/silu.cuh"
#include "prism/kernels/swiglu_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kBlock = 256;

/// Vector i of the result: its row and the offset of its first number there.
template <int N>
struct Place {
  __device__ Place(int64_t i, int64_t width) {
    const RowPlace at = place_of(i, width / N);
    row = at.token, channel = at.head * N;
  }
  int64_t row, channel;
};

template <class T, int N>
__global__ void __launch_bounds__(kBlock) forward_kernel(int64_t vectors, int64_t width, const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= vectors) return;
  const Place<N> at(i, width);
  const T* row = x + at.row * 2 * width + at.channel;
  const auto a = load_once<T, N>(row), b = load_once<T, N>(row + width);
  Arithmetic<T> out[N];
#pragma unroll
  for (int n = 0; n < N; ++n) out[n] = silu(widen(a.at[n])).value * widen(b.at[n]);
  store(narrow_all<T>(out), y + at.row * width + at.channel);
}

template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    backward_kernel(int64_t vectors, int64_t width, const T* x, const T* dy, T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= vectors) return;
  const Place<N> at(i, width);
  const int64_t first = at.row * 2 * width + at.channel;
  const auto a = load_once<T, N>(x + first), b = load_once<T, N>(x + first + width),
             up = load_once<T, N>(dy + at.row * width + at.channel);
  Arithmetic<T> da[N], db[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const auto gate = silu(widen(a.at[n]));
    da[n] = widen(up.at[n]) * widen(b.at[n]) * gate.slope;
    db[n] = widen(up.at[n]) * gate.value;
  }
  store(narrow_all<T>(da), dx + first);
  store(narrow_all<T>(db), dx + first + width);
}

/// Calls launch(T, vector width, vectors, blocks) for the type and alignment of a call.
template <class Launch>
const char* with_type(const SwigluShape& shape, bool aligned, const Launch& launch) {
  if (shape.rows * shape.width == 0) return nullptr;
  const auto of = [&]<class T>(T) {
    constexpr int N = kVectorWidth<T>;
    const auto run = [&]<int each>(std::integral_constant<int, each>) {
      const int64_t vectors = shape.rows * (shape.width / each);
      launch.template operator()<T, each>(vectors, static_cast<unsigned>((vectors + kBlock - 1) / kBlock));
    };
    if (aligned && shape.width % N == 0)
      run(std::integral_constant<int, N>());
    else
      run(std::integral_constant<int, 1>());
  };
  switch (shape.dtype) {
    case Scalar::kFloat64:
      of(double{});
      break;
    case Scalar::kFloat32:
      of(float{});
      break;
    case Scalar::kBFloat16:
      of(__nv_bfloat16{});
      break;
    default:
      of(__half{});
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

const char* swiglu_forward(const SwigluShape& shape, const void* x, void* y, CUstream_st* stream) {
  return with_type(shape, aligned(x) && aligned(y), [&]<class T, int N>(int64_t vectors, unsigned blocks) {
    forward_kernel<T, N>
        <<<blocks, kBlock, 0, stream>>>(vectors, shape.width, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

const char* swiglu_backward(const SwigluShape& shape, const void* x, const void* dy, void* dx,
                            CUstream_st* stream) {
  return with_type(
      shape, aligned(x) && aligned(dy) && aligned(dx), [&]<class T, int N>(int64_t vectors, unsigned blocks) {
        backward_kernel<T, N><<<blocks, kBlock, 0, stream>>>(vectors, shape.width, static_cast<const T*>(x),
                                                             static_cast<const T*>(dy), static_cast<T*>(dx));
      });
}

}  // namespace prism::kernels::cuda
