// Decoding: the inputs that a sequence hands on, and one token of each sequence. A thread a channel.
#include "kernels/short_conv/cuda/conv.cuh"

namespace prism::kernels::cuda {
namespace {

using namespace conv;

/// The sequence and the channel of this thread.
struct Cell {
  __device__ Cell(const Call& call, uint32_t column_blocks)
      : n(static_cast<int>(blockIdx.x / column_blocks)),
        channel(blockIdx.x % column_blocks * kBlock + threadIdx.x),
        exists(channel < call.channels),
        place((int64_t{n} * call.channels + channel) * (call.width - 1)) {}
  int n;
  uint32_t channel;
  bool exists;
  int64_t place;  ///< in a history
};

template <class T>
__global__ void __launch_bounds__(kBlock) history_kernel(Call call, uint32_t column_blocks, T* out) {
  const Cell at(call, column_blocks);
  if (!at.exists) return;
  const int rows = call.width - 1;
  const int start = call.offsets ? static_cast<int>(call.offsets[at.n]) : at.n * call.row_tokens;
  const int end = call.offsets ? static_cast<int>(call.offsets[at.n + 1]) : start + call.row_tokens;
  const T* const x = static_cast<const T*>(call.x) + at.channel;
  const T* const history = static_cast<const T*>(call.history) + at.place;
  for (int i = 0; i < rows; ++i) {
    const int token = end - rows + i;
    if (token >= start)
      out[at.place + i] = x[token * call.x_stride];
    else
      out[at.place + i] = call.history ? history[i + end - start] : narrow<T>(0);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock) step_kernel(Call call, uint32_t column_blocks, T* histories, T* y) {
  constexpr int kTaps = kMaxConvTaps;
  const Cell at(call, column_blocks);
  if (!at.exists) return;
  const Filter<T, 1, kTaps> filter(call, at.channel);
  T* const history = histories + at.place - filter.missing;
  Window<T, 1, kTaps> before;
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j) before.at[j][0] = filter.has(j) ? widen(history[j]) : 0;
  const T x = static_cast<const T*>(call.x)[at.n * call.x_stride + at.channel];
  const Arithmetic<T> own[1] = {widen(x)};
  const Arithmetic<T> sum = before.sum(filter, own, 0);
  y[int64_t{at.n} * call.channels + at.channel] = narrow<T>(call.silu ? silu(sum).value : sum);
  before.push(own);
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j)
    if (filter.has(j)) history[j] = narrow<T>(before.at[j][0]);
}

/// launch(T{}, blocks, column blocks) in the type of the shape.
template <class Launch>
const char* over_cells(const ShortConvCudaShape& shape, const Launch& launch) {
  if (const char* problem = unserved(shape)) return problem;
  if (shape.sequences == 0 || shape.channels == 0) return nullptr;
  const int64_t column_blocks = (shape.channels + kBlock - 1) / kBlock,
                blocks = shape.sequences * column_blocks;
  if (blocks > INT32_MAX) return "too large for one launch";
  const auto in_type = [&]<class T>(T element) {
    launch(element, static_cast<unsigned>(blocks), static_cast<uint32_t>(column_blocks));
  };
  if (shape.dtype == Scalar::kFloat64) in_type(double{});
  if (shape.dtype == Scalar::kFloat32) in_type(float{});
  if (shape.dtype == Scalar::kBFloat16) in_type(__nv_bfloat16{});
  if (shape.dtype == Scalar::kFloat16) in_type(__half{});
  return launch_problem();
}

}  // namespace

const char* short_conv_history(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* history,
                               CUstream_st* stream) {
  if (shape.width == 1) return nullptr;
  return over_cells(shape, [&]<class T>(T, unsigned blocks, uint32_t column_blocks) {
    history_kernel<<<blocks, kBlock, 0, stream>>>(Call(shape, in), column_blocks, static_cast<T*>(history));
  });
}

const char* short_conv_step(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* history,
                            void* y, CUstream_st* stream) {
  return over_cells(shape, [&]<class T>(T, unsigned blocks, uint32_t column_blocks) {
    step_kernel<<<blocks, kBlock, 0, stream>>>(Call(shape, in), column_blocks, static_cast<T*>(history),
                                               static_cast<T*>(y));
  });
}

}  // namespace prism::kernels::cuda
