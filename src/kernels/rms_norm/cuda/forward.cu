// Reads x (and the gate), writes y. The row stays in registers between its sum and the result; of rows wider
// than a block holds (8192 channels, 2048 one number at a time) the rest is read again.
#include "kernels/rms_norm/cuda/norm.cuh"

namespace prism::kernels::cuda::norm {
namespace {

constexpr Channels kForwardChannels{.warp = 32, .block = 32};

struct ForwardCall {
  Rows rows;
  RowView x, gate;
  const void* weight;
  void* y;
  double scale, eps;
};

template <class V>
struct Pointers {
  const typename V::Input *x, *gate;
  const void* weight;
  typename V::Result* y;
};

template <class V, int N = V::kVector>
__device__ void add_squares(const Vector<typename V::Input, N>& x, typename V::Real& sum) {
#pragma unroll
  for (int n = 0; n < N; ++n) sum += widen(x.at[n]) * widen(x.at[n]);
}

template <class V, int N = V::kVector>
__device__ void write_result(const Vector<typename V::Input, N>& x, const Vector<typename V::Input, N>& gate,
                             typename V::Real inverse, const Pointers<V>& row, uint32_t channel) {
  using C = typename V::Real;
  const Vector<C, N> weight = weights_at<C, N>(row.weight, channel);
  C y[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    y[n] = widen(x.at[n]) * inverse * weight.at[n];
    if constexpr (V::kGated) y[n] *= silu(widen(gate.at[n])).value;
  }
  store(narrow_all<typename V::Result>(y), row.y + channel);
}

template <class V>
__global__ void __launch_bounds__(kBlock) forward_kernel(ForwardCall call) {
  using X = typename V::Input;
  using C = typename V::Real;
  constexpr int N = V::kVector, kHeld = V::kHeld;
  typename V::Team team(call.rows);
  const RowOfTeam row(call.rows, team, int64_t{blockIdx.x} * team.count());
  const Pointers<V> at{call.x.row<X>(row.at), V::kGated ? call.gate.row<X>(row.at) : nullptr, call.weight,
                       static_cast<typename V::Result*>(call.y) + row.number * int64_t{call.rows.width}};
  Vector<X, N> x[kHeld], gate[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    x[i] = load_or_zero<X, N>(at.x, channel_of<V>(team, i), row.width);
    if constexpr (V::kGated) gate[i] = load_or_zero<X, N>(at.gate, channel_of<V>(team, i), row.width);
  }
  C sum[1] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) add_squares<V>(x[i], sum[0]);
  const uint32_t beyond = channel_of<V>(team, kHeld), step = team.lanes() * N;
  if constexpr (V::Team::kIsBlock)
    for (uint32_t c = beyond; c < row.width; c += step) add_squares<V>(load_once<X, N>(at.x + c), sum[0]);
  team.sum(sum);
  const C inverse = inverse_root(sum[0] * C(call.scale) + C(call.eps));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const uint32_t c = channel_of<V>(team, i);
    if (c < row.width) write_result<V>(x[i], gate[i], inverse, at, c);
  }
  if constexpr (V::Team::kIsBlock)
    for (uint32_t c = beyond; c < row.width; c += step)
      write_result<V>(load_once<X, N>(at.x + c), load_or_zero<X, N>(at.gate, c, V::kGated ? row.width : 0),
                      inverse, at, c);
}

struct Forward {
  template <class X, class Y, bool kGated>
  void run() const {
    constexpr int N = kVectorWidth<X>;
    const bool vectors = call.width % N == 0 && given.x.is_aligned<X, N>() && given.gate.is_aligned<X, N>() &&
                         is_aligned<Y, N>(given.y) && is_aligned<float, 4>(given.weight);
    with_team<X, Y, kGated, kForwardChannels>(vectors, call.width, [&]<class V>(V, int log2_lanes) {
      ForwardCall all = given;
      all.rows = rows_of(call, log2_lanes);
      const int64_t each = rows_at_once<typename V::Team>(all.rows);
      const auto blocks = static_cast<unsigned>((all.rows.count + each - 1) / each);
      forward_kernel<V><<<blocks, kBlock, 0, stream>>>(all);
    });
  }

  const Normalization& call;
  const ForwardCall& given;
  CUstream_st* stream;
};

}  // namespace

const char* forward(const Normalization& call, void* y, CUstream_st* stream) {
  if (call.tokens * call.heads == 0) return nullptr;
  const ForwardCall given{.rows = {},
                          .x = {call.in.x, call.tokens, call.heads},
                          .gate = {call.in.gate, call.tokens, call.heads},
                          .weight = call.in.weight,
                          .y = y,
                          .scale = call.scale,
                          .eps = call.eps};
  return launched(call, Forward{call, given, stream});
}

}  // namespace prism::kernels::cuda::norm
