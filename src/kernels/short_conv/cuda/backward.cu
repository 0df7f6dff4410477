// Reads x and dy, makes the sums before the activation again and writes dx; dweight and dbias as a partial
// sum for each block of tokens, which a second kernel adds up in order. With g_t = dy_t phi'(pre_t):
//   dx_s = sum_j weight_j g_{s+W-1-j},   dweight_j = sum_t g_t x_{t-W+1+j},   dbias = sum_t g_t
#include "kernels/short_conv/cuda/conv.cuh"

namespace prism::kernels::cuda {
namespace {

using namespace conv;

constexpr int kAhead = 4;   ///< tokens whose loads a thread starts before the first use
constexpr int kBlocks = 3;  ///< a multiprocessor; more would leave too few registers

struct Gradients {
  const void* dy;
  int64_t dy_stride;
  void *dx, *partials;  ///< partials [row blocks, W + 1, D], dbias last
};

/// A thread's walk over its run and, for the dx of its last tokens, up to W-1 tokens of the same sequence
/// beyond it.
template <class Chosen>
struct Walk {
  using T = typename Chosen::Element;
  using C = Arithmetic<T>;
  static constexpr int N = Chosen::kVector, kTaps = Chosen::kTapCount;

  __device__ void run(C (&sums)[kTaps + 1][N]) {
    Sequence s = sequence_of(call, at.first);
    before.fill(call, s, at.first, at.channel);
    first_kept = at.first;  // what tokens of this run owe to those before it is not their business
    clear();
    const T* x = static_cast<const T*>(call.x) + at.first * call.x_stride + at.channel;
    const T* dy = static_cast<const T*>(out.dy) + at.first * out.dy_stride + at.channel;
    int stop = out.dx ? min(at.last + call.width - 1, call.tokens) : at.last;
    for (int t = at.first; t < stop; t += kAhead) {
      Vector<T, N> x_rows[kAhead], dy_rows[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (t + u < stop) {
          x_rows[u] = load<T, N>(x);
          dy_rows[u] = load<T, N>(dy);
        }
        x += call.x_stride;
        dy += out.dy_stride;
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (t + u >= stop) continue;
        if (t + u == s.end) {
          if (t + u >= at.last) {
            stop = t + u;
            continue;
          }
          store_pending(t + u);
          advance(call, s);
          before.fill(call, s, t + u, at.channel);
          first_kept = t + u;
          clear();
        }
        token(t + u, x_rows[u], dy_rows[u], sums);
      }
    }
    store_pending(stop);
  }

  __device__ void token(int t, const Vector<T, N>& x, const Vector<T, N>& dy, C (&sums)[kTaps + 1][N]) {
    C own[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      own[i] = widen(x.at[i]);
      C g = widen(dy.at[i]);
      if (call.silu) g *= silu(before.sum(filter, own, i)).slope;
      if (t < at.last) {
#pragma unroll
        for (int j = 0; j < kTaps; ++j)
          sums[j][i] = fma(g, j < kTaps - 1 ? before.at[j][i] : own[i], sums[j][i]);
        sums[kTaps][i] += g;
      }
#pragma unroll
      for (int j = 0; j < kTaps; ++j)
        if (filter.has(j)) pending[j][i] = fma(filter.weight[j][i], g, pending[j][i]);
    }
    before.push(own);
    store_token(t - (kTaps - 1), pending[0]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < kTaps - 1; ++j) pending[j][i] = pending[j + 1][i];
      pending[kTaps - 1][i] = 0;
    }
  }

  /// The tokens before `end` that no later one will add to.
  __device__ void store_pending(int end) const {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) store_token(end - (kTaps - 1) + j, pending[j]);
  }
  __device__ void store_token(int t, const C (&x)[N]) const {
    if (out.dx && t >= first_kept && t < at.last)
      store(x, static_cast<T*>(out.dx) + int64_t{t} * call.channels + at.channel);
  }
  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < kTaps; ++j)
#pragma unroll
      for (int i = 0; i < N; ++i) pending[j][i] = 0;
  }

  const Call& call;
  const Gradients& out;
  const Place& at;
  const Filter<T, N, kTaps> filter;
  Window<T, N, kTaps> before;
  C pending[kTaps]
           [N];    // dx of the token in hand (last) and of the kTaps - 1 before it, as far as it is known
  int first_kept;  // dx of this token and of later ones is this thread's
};

/// The sums of the block's threads, a row after the other, into its partial sums.
template <class Chosen, class C>
__device__ void store_partials(const Call& call, const Grid& grid, const Place& at, const Gradients& out,
                               const C (&sums)[Chosen::kTapCount + 1][Chosen::kVector]) {
  constexpr int N = Chosen::kVector, kTaps = Chosen::kTapCount;
  __shared__ C shared[kBlock * N];
  const int width = N << grid.log2_lanes, missing = missing_taps<kTaps>(call);
#pragma unroll
  for (int j = 0; j <= kTaps; ++j) {
    if (j < missing) continue;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) shared[threadIdx.x * N + i] = sums[j][i];
    __syncthreads();
    const uint32_t channel = at.column_block * width + threadIdx.x;
    if (threadIdx.x >= width || channel >= call.channels) continue;
    C total = 0;
    for (int i = threadIdx.x; i < kBlock * N; i += width) total += shared[i];
    const int64_t row = int64_t{at.row_block} * (call.width + 1) + j - missing;
    static_cast<C*>(out.partials)[row * call.channels + channel] = total;
  }
}

template <class Chosen>
__global__ void __launch_bounds__(kBlock, sizeof(typename Chosen::Element) == 8 ? 1 : kBlocks)
    backward_kernel(Call call, Grid grid, Gradients out) {
  using C = Arithmetic<typename Chosen::Element>;
  const Place at(call, grid, Chosen::kVector);
  C sums[Chosen::kTapCount + 1][Chosen::kVector] = {};
  if (at.exists) Walk<Chosen>{call, out, at, {call, at.channel}}.run(sums);
  if (out.partials) store_partials<Chosen>(call, grid, at, out, sums);
}

// Adding up: a column of the partial sums (a tap of a channel) is cut into slices of consecutive blocks.
constexpr int kSumColumns = 32, kSumSlices = 8;

template <class C>
__global__ void __launch_bounds__(kSumColumns* kSumSlices)
    sum_kernel(const C* partials, uint32_t blocks, uint32_t channels, uint32_t width, C* dweight, C* dbias) {
  __shared__ C shared[kSumSlices][kSumColumns];
  const int64_t columns = int64_t{channels} * (width + 1),
                column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  const uint32_t slice = (blocks + kSumSlices - 1) / kSumSlices, first = threadIdx.y * slice,
                 last = min(first + slice, blocks);
  C total = 0;
  if (column < columns) {
#pragma unroll 8
    for (uint32_t b = first; b < last; ++b) total += partials[b * columns + column];
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < kSumSlices; ++i) total += shared[i][threadIdx.x];
  const uint32_t tap = static_cast<uint32_t>(column / channels), channel = column % channels;
  if (tap < width && dweight) dweight[int64_t{channel} * width + tap] = total;
  if (tap == width && dbias) dbias[channel] = total;
}

template <class C>
void add_up(const ShortConvCudaShape& shape, uint32_t blocks, const ShortConvGradients& out,
            const void* partials, CUstream_st* stream) {
  const int64_t columns = shape.channels * (shape.width + 1);
  sum_kernel<C><<<static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns),
                  dim3(kSumColumns, kSumSlices), 0, stream>>>(
      static_cast<const C*>(partials), blocks, static_cast<uint32_t>(shape.channels),
      static_cast<uint32_t>(shape.width), static_cast<C*>(out.dweight), static_cast<C*>(out.dbias));
}

}  // namespace

int64_t short_conv_backward_workspace(const ShortConvCudaShape& shape, bool with_weights) {
  if (!with_weights) return 0;
  return Grid(shape, kVector).row_blocks * (shape.width + 1) * shape.channels *
         (shape.dtype == Scalar::kFloat64 ? 8 : 4);
}

const char* short_conv_backward(const ShortConvCudaShape& shape, const ShortConvInputs& in, const View& dy,
                                const ShortConvGradients& out, void* workspace, CUstream_st* stream) {
  if (const char* problem = unserved(shape)) return problem;
  if (shape.channels == 0) return nullptr;
  const bool with_weights = out.dweight || out.dbias;
  const auto aligned = [&]<class T>(T) {
    return is_aligned<T>(in.x.data, in.x.token_stride) && is_aligned<T>(dy.data, dy.token_stride) &&
           is_aligned<T>(out.dx, 0);
  };
  const char* problem = nullptr;
  with_variant(shape, aligned, [&]<class Chosen>(Chosen) {
    const Grid grid(shape, Chosen::kVector);
    if (grid.blocks() > INT32_MAX) {
      problem = "too large for one launch";
      return;
    }
    if (shape.tokens && (out.dx || with_weights))
      backward_kernel<Chosen><<<static_cast<unsigned>(grid.blocks()), kBlock, 0, stream>>>(
          Call(shape, in), grid, {dy.data, dy.token_stride, out.dx, with_weights ? workspace : nullptr});
    if (with_weights)
      add_up<Arithmetic<typename Chosen::Element>>(shape, grid.row_blocks, out, workspace, stream);
    problem = launch_problem();
  });
  return problem;
}

}  // namespace prism::kernels::cuda
