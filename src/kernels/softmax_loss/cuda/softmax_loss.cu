// A block takes a row: it is read twice, for the sum and for the gradients, the second time from the L2
// cache.
#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/softmax_loss_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kThreads = 512, kEach = 4;  // scores a thread reads at once
constexpr float kLog2E = 1.4426950408889634f;

/// sum = sum of 2^(x - most) over some numbers x; `most` is their maximum.
struct Sum {
  float most = -INFINITY, sum = 0;

  __device__ void add(const Sum& other) {
    const float larger = fmaxf(most, other.most);
    if (larger == -INFINITY) return;
    sum = sum * exp2f(most - larger) + other.sum * exp2f(other.most - larger);
    most = larger;
  }
};

/// The sum over the block, the same on every thread; in a fixed order.
__device__ Sum over_block(Sum own) {
  __shared__ Sum of_warp[kThreads / kWarpSize];
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const Sum other{__shfl_xor_sync(~0u, own.most, offset), __shfl_xor_sync(~0u, own.sum, offset)};
    own.add(other);
  }
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  Sum all;
  for (const Sum& part : of_warp) all.add(part);
  __syncthreads();  // of_warp is written again for the next row
  return all;
}

/// Of a row of scores in units of log 2, so that the exponential is one instruction.
__device__ Sum exponentials(const float* row, int64_t columns) {
  Sum own;
  for (int64_t j = threadIdx.x * kEach; j < columns; j += kThreads * kEach) {
    const auto scores = *reinterpret_cast<const Vector<float, kEach>*>(row + j);
    Sum here;
    float x[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x[i] = j + i < columns ? scores.at[i] * kLog2E : -INFINITY;
      here.most = fmaxf(here.most, x[i]);
    }
    if (here.most == -INFINITY) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) here.sum += exp2f(x[i] - here.most);
    own.add(here);
  }
  return over_block(own);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(SoftmaxLossShape shape, const float* scores, const int64_t* targets, T* gradients,
                   float* losses) {
  for (int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    const float* row = scores + i * shape.stride;
    const int64_t target = targets[i];
    const float of_target = row[target];  // before the gradients may take its place
    const Sum all = exponentials(row, shape.columns);
    const float scale = 1 / all.sum;
    for (int64_t j = threadIdx.x * kEach; j < shape.stride; j += kThreads * kEach) {
      const auto own = *reinterpret_cast<const Vector<float, kEach>*>(row + j);
      float gradient[kEach];
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        const float share = exp2f(own.at[c] * kLog2E - all.most) * scale;
        gradient[c] = j + c < shape.columns ? share - (j + c == target ? 1.0f : 0.0f) : 0.0f;
      }
      *reinterpret_cast<Vector<T, kEach>*>(gradients + i * shape.stride + j) = narrow_all<T>(gradient);
    }
    if (threadIdx.x == 0) losses[i] = (all.most + log2f(all.sum)) / kLog2E - of_target;
  }
}

template <class T>
const char* launch(const SoftmaxLossShape& shape, const float* scores, const int64_t* targets,
                   void* gradients, float* losses, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(shape.rows < (1 << 30) ? shape.rows : (1 << 30));
  softmax_kernel<T>
      <<<blocks, kThreads, 0, stream>>>(shape, scores, targets, static_cast<T*>(gradients), losses);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

const char* softmax_loss(const SoftmaxLossShape& shape, const float* scores, const int64_t* targets,
                         void* gradients, float* losses, CUstream_st* stream) {
  if (shape.rows == 0) return nullptr;
  if (shape.stride % 8 != 0 || shape.columns > shape.stride) return "the stride must be a multiple of 8";
  switch (shape.gradient) {
    case Scalar::kBFloat16:
      return launch<__nv_bfloat16>(shape, scores, targets, gradients, losses, stream);
    case Scalar::kFloat16:
      return launch<__half>(shape, scores, targets, gradients, losses, stream);
    case Scalar::kFloat32:
      return launch<float>(shape, scores, targets, gradients, losses, stream);
    default:
      return "gradients are bf16, fp16 or fp32";
  }
}

}  // namespace prism::kernels::cuda
