// Reads x once and writes y. A thread walks a run of tokens with the last W-1 inputs of its channels in
// registers; those before the run are read again.
#include "kernels/short_conv/cuda/conv.cuh"

namespace prism::kernels::cuda {
namespace {

using namespace conv;

constexpr int kAhead = 8;  ///< tokens whose loads a thread starts before the first use

template <class Chosen>
__global__ void __launch_bounds__(kBlock)
    forward_kernel(Call call, Grid grid, typename Chosen::Element* out) {
  using T = typename Chosen::Element;
  using C = Arithmetic<T>;
  constexpr int N = Chosen::kVector;
  const Place at(call, grid, N);
  if (!at.exists) return;
  const Filter<T, N, Chosen::kTapCount> filter(call, at.channel);
  Sequence s = sequence_of(call, at.first);
  Window<T, N, Chosen::kTapCount> before;
  before.fill(call, s, at.first, at.channel);
  const T* x = static_cast<const T*>(call.x) + at.first * call.x_stride + at.channel;
  T* y = out + int64_t{at.first} * call.channels + at.channel;
  for (int t = at.first; t < at.last; t += kAhead) {
    Vector<T, N> rows[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (t + u < at.last) rows[u] = load<T, N>(x);
      x += call.x_stride;
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (t + u >= at.last) break;
      if (t + u == s.end) {
        advance(call, s);
        before.fill(call, s, t + u, at.channel);
      }
      C own[N], result[N];
#pragma unroll
      for (int i = 0; i < N; ++i) own[i] = widen(rows[u].at[i]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const C sum = before.sum(filter, own, i);
        result[i] = call.silu ? silu(sum).value : sum;
      }
      store(result, y);
      y += call.channels;
      before.push(own);
    }
  }
}

}  // namespace

const char* short_conv_forward(const ShortConvCudaShape& shape, const ShortConvInputs& in, void* y,
                               CUstream_st* stream) {
  if (const char* problem = unserved(shape)) return problem;
  if (shape.tokens == 0 || shape.channels == 0) return nullptr;
  const auto aligned = [&]<class T>(T) {
    return is_aligned<T>(in.x.data, in.x.token_stride) && is_aligned<T>(y, shape.channels);
  };
  const char* problem = nullptr;
  with_variant(shape, aligned, [&]<class Chosen>(Chosen) {
    const Grid grid(shape, Chosen::kVector);
    if (grid.blocks() > INT32_MAX) {
      problem = "too large for one launch";
      return;
    }
    forward_kernel<Chosen><<<static_cast<unsigned>(grid.blocks()), kBlock, 0, stream>>>(
        Call(shape, in), grid, static_cast<typename Chosen::Element*>(y));
    problem = launch_problem();
  });
  return problem;
}

}  // namespace prism::kernels::cuda
