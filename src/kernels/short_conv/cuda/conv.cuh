#pragma once
// What the kernels of short_conv share: where a thread works, the inputs before a token, the sum over taps
// and the choice of the kernel.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/short_conv_cuda.h"

namespace prism::kernels::cuda::conv {

constexpr int kBlock = 256;
/// Channels a thread. More would be wider loads but cost the registers, and so the warps, that hide their
/// latency; a warp reads whole lines in any case.
constexpr int kVector = 2;

template <class C>
struct Activation {
  C value, slope;
};

/// Two instructions of the special unit; exp(-x) = inf makes s 0.
__device__ inline Activation<float> silu(float x) {
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.44269504f * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
  return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
}
__device__ inline Activation<double> silu(double x) {
  const double s = 1.0 / (1.0 + exp(-x));
  return {x * s, s * fma(x, 1.0 - s, 1.0)};
}

/// A call as the kernels hold it. Token and sequence numbers fit 32 bits.
struct Call {
  Call(const ShortConvCudaShape& shape, const ShortConvInputs& in)
      : x(in.x.data),
        weight(in.weight),
        bias(in.bias),
        history(shape.width > 1 ? in.initial_state : nullptr),
        offsets(shape.offsets),
        x_stride(in.x.token_stride),
        channels(static_cast<uint32_t>(shape.channels)),
        tokens(static_cast<int>(shape.tokens)),
        row_tokens(shape.offsets || !shape.sequences ? 0 : static_cast<int>(shape.tokens / shape.sequences)),
        sequences(static_cast<int>(shape.sequences)),
        width(static_cast<int>(shape.width)),
        silu(shape.silu) {}
  const void *x, *weight, *bias, *history;
  const int64_t* offsets;
  int64_t x_stride;
  uint32_t channels;
  int tokens, row_tokens, sequences, width;
  bool silu;
};

/// Tokens [start, end).
struct Sequence {
  int index, start, end;
};

/// The sequence of a token: the last one that starts there or before, since empty ones start where the next
/// one does.
__device__ inline Sequence sequence_of(const Call& call, int token) {
  if (!call.offsets) {
    const int n = token / call.row_tokens;
    return {n, n * call.row_tokens, (n + 1) * call.row_tokens};
  }
  int low = 0, high = call.sequences;  // offsets[low] <= token < offsets[high]
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (call.offsets[middle] <= token ? low : high) = middle;
  }
  return {low, static_cast<int>(call.offsets[low]), static_cast<int>(call.offsets[high])};
}

/// From a sequence to the one that starts at its end and has a token.
__device__ inline void advance(const Call& call, Sequence& s) {
  s.start = s.end;
  do {
    ++s.index;
    s.end = call.offsets ? static_cast<int>(call.offsets[s.index + 1]) : s.end + call.row_tokens;
  } while (s.end == s.start);
}

/// How threads lie: 2^log2_lanes of them side by side (at most a warp), each with `vector` channels, and a
/// run of tokens for each row of a block. Which tokens a block takes follows from the shape alone, not from
/// the vector that the addresses allow.
struct Grid {
  Grid(const ShortConvCudaShape& shape, int vector) {
    constexpr int64_t kEnoughThreads = 65536;
    const auto cut = [](int64_t x, int64_t into) { return static_cast<uint32_t>((x + into - 1) / into); };
    const uint32_t pairs = cut(shape.channels, kVector);
    while (log2_lanes < 5 && (1u << log2_lanes) < pairs) ++log2_lanes;
    while (run > 8 && int64_t{cut(shape.tokens, run)} * pairs < kEnoughThreads) run /= 2;
    column_blocks = cut(shape.channels, int64_t{vector} << log2_lanes);
    row_blocks = cut(shape.tokens, int64_t{run} * (kBlock >> log2_lanes));
  }
  int64_t blocks() const { return int64_t{row_blocks} * column_blocks; }

  uint32_t column_blocks, row_blocks;
  int log2_lanes = 0, run = 64;
};

/// The channels and the tokens [first, last) of this thread.
struct Place {
  __device__ Place(const Call& call, const Grid& grid, int vector)
      : column_block(blockIdx.x % grid.column_blocks),
        row_block(blockIdx.x / grid.column_blocks),
        channel(((column_block << grid.log2_lanes) + (threadIdx.x & ((1u << grid.log2_lanes) - 1))) * vector),
        first(static_cast<int>(row_block * (kBlock >> grid.log2_lanes) + (threadIdx.x >> grid.log2_lanes)) *
              grid.run),
        last(min(first + grid.run, call.tokens)),
        exists(channel < call.channels && first < call.tokens) {}
  uint32_t column_block, row_block, channel;
  int first, last;
  bool exists;
};

template <class T, int N>
__device__ Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <class T, int N>
__device__ void store(const Arithmetic<T> (&x)[N], T* to) {
  *reinterpret_cast<Vector<T, N>*>(to) = narrow_all<T>(x);
}

/// Kernels with kMaxConvTaps taps serve every width: the first taps, which the width does not have, are left
/// out. Those with fewer serve that width.
template <int kTaps>
__device__ int missing_taps(const Call& call) {
  return kTaps < kMaxConvTaps ? 0 : kTaps - call.width;
}

/// Weights and bias of N channels.
template <class T, int N, int kTaps>
struct Filter {
  using C = Arithmetic<T>;

  __device__ Filter(const Call& call, uint32_t channel) : missing(missing_taps<kTaps>(call)) {
    const C* const from = static_cast<const C*>(call.weight) + int64_t{channel} * call.width - missing;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      bias[i] = call.bias ? static_cast<const C*>(call.bias)[channel + i] : C(0);
#pragma unroll
      for (int j = 0; j < kTaps; ++j) weight[j][i] = has(j) ? from[i * call.width + j] : C(0);
    }
  }
  __device__ bool has(int j) const { return j >= missing; }

  C weight[kTaps][N], bias[N];
  int missing;
};

/// The kTaps - 1 inputs before a token, oldest first.
template <class T, int N, int kTaps>
struct Window {
  using C = Arithmetic<T>;

  /// Those before `token` of its sequence `s`; inputs before its start come from the history or are zero.
  __device__ void fill(const Call& call, const Sequence& s, int token, uint32_t channel) {
    const int missing = missing_taps<kTaps>(call), kept = kTaps - 1 - missing;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      const int position = token - (kTaps - 1) + j;
      Vector<T, N> row = {};
      if (j >= missing && position >= s.start) {
        row = load<T, N>(static_cast<const T*>(call.x) + position * call.x_stride + channel);
      } else if (j >= missing && call.history) {
        const T* const from = static_cast<const T*>(call.history) +
                              (int64_t{s.index} * call.channels + channel) * kept + position - s.start + kept;
#pragma unroll
        for (int i = 0; i < N; ++i) row.at[i] = from[i * kept];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) at[j][i] = widen(row.at[i]);
    }
  }
  __device__ void push(const C (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j + 2 < kTaps; ++j) at[j][i] = at[j + 1][i];
      at[kTaps - 2][i] = x[i];
    }
  }
  /// bias + sum_j weight_j x_{t-W+1+j} of channel i, the oldest tap first: every kernel adds in this order.
  __device__ C sum(const Filter<T, N, kTaps>& filter, const C (&x)[N], int i) const {
    C result = filter.bias[i];
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      if (filter.has(j)) result = fma(filter.weight[j][i], at[j][i], result);
    return fma(filter.weight[kTaps - 1][i], x[i], result);
  }

  C at[kTaps - 1][N];
};

/// The storage type, channels a thread and taps of a kernel.
template <class T, int N, int kTaps>
struct Variant {
  using Element = T;
  static constexpr int kVector = N, kTapCount = kTaps;
};

/// Whether vectors reach every token.
template <class T>
bool is_aligned(const void* data, int64_t token_stride) {
  return reinterpret_cast<uintptr_t>(data) % (kVector * sizeof(T)) == 0 && token_stride % kVector == 0;
}

inline const char* launch_problem() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

/// Why a call is not served, or nullptr.
inline const char* unserved(const ShortConvCudaShape& shape) {
  if (shape.width < 1 || shape.width > kMaxConvTaps) return "the width must be 1 to 8";
  const int64_t most = int64_t{1} << 30;
  if (shape.tokens >= most || shape.sequences >= most || shape.channels >= most)
    return "too large for one launch";
  return nullptr;
}

/// launch(Variant): kVector channels a thread where `aligned(T{})` says that this can be, one otherwise and
/// in fp64; kernels of their own for widths 2 to 4 where vectors serve.
template <class Aligned, class Launch>
void with_variant(const ShortConvCudaShape& shape, const Aligned& aligned, const Launch& launch) {
  constexpr int kAny = kMaxConvTaps;
  const auto in_type = [&]<class T>(T element) {
    const bool vectors = shape.channels % kVector == 0 && aligned(element);
    if (vectors && shape.width == 2) return launch(Variant<T, kVector, 2>());
    if (vectors && shape.width == 3) return launch(Variant<T, kVector, 3>());
    if (vectors && shape.width == 4) return launch(Variant<T, kVector, 4>());
    launch(Variant<T, 1, kAny>());
  };
  if (shape.dtype == Scalar::kFloat64) launch(Variant<double, 1, kAny>());
  if (shape.dtype == Scalar::kFloat32) in_type(float{});
  if (shape.dtype == Scalar::kBFloat16) in_type(__nv_bfloat16{});
  if (shape.dtype == Scalar::kFloat16) in_type(__half{});
}

}  // namespace prism::kernels::cuda::conv
