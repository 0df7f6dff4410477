#include <algorithm>

#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/dropout_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kBlock = 256, kEach = 4;

/// Elements whose indices share their high word; `first` is the low word of the first. The keys follow from
/// the seed on the device, where there is one.
struct Span {
  HashKeys keys;
  const int64_t* seed;
  uint64_t high;
  uint32_t threshold, first;
  float scale;
  int64_t count;
};

template <class X, class R>
__global__ void __launch_bounds__(kBlock) dropout_kernel(Span span, const R* residual, const X* x, R* out) {
  const int64_t begin = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * kEach;
  const HashKeys keys =
      span.seed ? dropout_keys(static_cast<uint64_t>(__ldg(span.seed)), span.high) : span.keys;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int64_t i = begin + n;
    if (i >= span.count) return;
    const bool kept = dropout_hash(span.first + static_cast<uint32_t>(i), keys) >= span.threshold;
    const float own = residual ? widen(residual[i]) : 0.0f;
    out[i] = narrow<R>(kept ? own + span.scale * widen(x[i]) : own);
  }
}

template <class X, class R>
void launch(const DropoutMask& mask, const void* residual, const void* x, float scale, void* out,
            int64_t count, CUstream_st* stream) {
  for (int64_t begin = 0; begin < count;) {
    const int64_t index = mask.first + begin;
    const uint64_t high = static_cast<uint64_t>(index) >> 32;
    const int64_t end = std::min<int64_t>(count, static_cast<int64_t>((high + 1) << 32) - mask.first);
    const Span span{dropout_keys(mask.seed, high),
                    mask.seed_on_device,
                    high,
                    mask.threshold,
                    static_cast<uint32_t>(index),
                    scale,
                    end - begin};
    const auto blocks = static_cast<unsigned>((span.count + kBlock * kEach - 1) / (kBlock * kEach));
    dropout_kernel<X, R>
        <<<blocks, kBlock, 0, stream>>>(span, residual ? static_cast<const R*>(residual) + begin : nullptr,
                                        static_cast<const X*>(x) + begin, static_cast<R*>(out) + begin);
    begin = end;
  }
}

}  // namespace

const char* dropout_add(const DropoutMask& mask, Scalar input, Scalar result, const void* residual,
                        const void* x, float scale, void* out, int64_t count, CUstream_st* stream) {
  const auto same = input == result;
  const auto run = [&]<class X>(X) {
    same ? launch<X, X>(mask, residual, x, scale, out, count, stream)
         : launch<X, float>(mask, residual, x, scale, out, count, stream);
  };
  if (!same && result != Scalar::kFloat32) return "the result has x's type or fp32";
  if (input == Scalar::kFloat32)
    run(float{});
  else if (input == Scalar::kBFloat16)
    run(__nv_bfloat16{});
  else if (input == Scalar::kFloat16)
    run(__half{});
  else
    return "no kernel for fp64";
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace prism::kernels::cuda
