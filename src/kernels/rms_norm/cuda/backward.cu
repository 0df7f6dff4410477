// Reads x, dy (and the gate), writes dx (and dgate). With n = x i, i the inverse root, and u = dy weight
// SiLU(gate), both sums of dx = i (u - n scale sum(u n)) are taken in one pass over registers.
//
// dweight: a block goes through its rows with a sum for each channel in registers; its teams' sums are added
// in order and written as one row of the workspace, whose rows a second kernel adds in order. Which rows a
// block has depends on the shape alone.
#include "kernels/rms_norm/cuda/norm.cuh"

namespace prism::kernels::cuda::norm {
namespace {

/// Most blocks that sum dweight: 8 for each multiprocessor of an H200, and the same on any other GPU.
constexpr int64_t kMaxPartials = 1056;

/// What fits 128 registers beside the sums of dweight.
constexpr Channels kPlainChannels{.warp = 32, .block = 16}, kGatedChannels{.warp = 16, .block = 16};

struct BackwardCall {
  Rows rows;
  RowView x, gate, dy;
  const void* weight;
  void *dx, *dgate, *partials;
  double scale, eps;
};

/// Where a row lies; null for what is not wanted.
template <class V>
struct Pointers {
  using X = typename V::Input;
  __device__ Pointers(const BackwardCall& call, const RowOfTeam& row)
      : x(call.x.row<X>(row.at)),
        gate(V::kGated ? call.gate.row<X>(row.at) : nullptr),
        dy(call.dy.row<typename V::Result>(row.at)),
        dx(out(call.dx, call, row)),
        dgate(out(call.dgate, call, row)) {}
  __device__ static X* out(void* data, const BackwardCall& call, const RowOfTeam& row) {
    return data ? static_cast<X*>(data) + row.number * int64_t{call.rows.width} : nullptr;
  }
  const X *x, *gate;
  const typename V::Result* dy;
  X *dx, *dgate;
};

/// What a thread holds of N channels.
template <class V, int N = V::kVector>
struct Slice {
  __device__ void load(const Pointers<V>& row, uint32_t channel, uint32_t width) {
    x = load_or_zero<typename V::Input, N>(row.x, channel, width);
    dy = load_or_zero<typename V::Result, N>(row.dy, channel, width);
    if constexpr (V::kGated) gate = load_or_zero<typename V::Input, N>(row.gate, channel, width);
  }
  Vector<typename V::Input, N> x, gate;
  Vector<typename V::Result, N> dy;
};

/// Adds x x and x u.
template <class V, int N = V::kVector>
__device__ void add_sums(const Slice<V>& slice, const void* weights, uint32_t channel,
                         typename V::Real (&sums)[2]) {
  using C = typename V::Real;
  const Vector<C, N> weight = weights_at<C, N>(weights, channel);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const C x = widen(slice.x.at[n]);
    C u = C(widen(slice.dy.at[n])) * weight.at[n];
    if constexpr (V::kGated) u *= silu(widen(slice.gate.at[n])).value;
    sums[0] += x * x;
    sums[1] += x * u;
  }
}

template <class C>
struct Factors {
  C inverse;  ///< n = x inverse
  C along;    ///< scale sum(u n)
};

/// Writes dx and dgate and adds to dweight.
template <class V, int N = V::kVector>
__device__ void write_gradients(const Slice<V>& slice, const void* weights,
                                const Factors<typename V::Real>& by, const Pointers<V>& row, uint32_t channel,
                                typename V::Real (&dweight)[N]) {
  using C = typename V::Real;
  const Vector<C, N> weight = weights_at<C, N>(weights, channel);
  C dx[N], dgate[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const C unit = widen(slice.x.at[n]) * by.inverse;
    C up = widen(slice.dy.at[n]);
    if constexpr (V::kGated) {
      const Silu<C> gate = silu(widen(slice.gate.at[n]));
      dgate[n] = up * unit * weight.at[n] * gate.slope;
      up *= gate.value;
    }
    dweight[n] += up * unit;
    dx[n] = by.inverse * (up * weight.at[n] - unit * by.along);
  }
  if (row.dx) store(narrow_all<typename V::Input>(dx), row.dx + channel);
  if constexpr (V::kGated)
    if (row.dgate) store(narrow_all<typename V::Input>(dgate), row.dgate + channel);
}

/// The channels of a row beyond the held ones, read again each time; only for a BlockTeam.
template <class V>
class Beyond {
 public:
  static constexpr int N = V::kVector;
  using C = typename V::Real;
  __device__ Beyond(const typename V::Team& team, const Pointers<V>& row, uint32_t width)
      : row_(row), first_(channel_of<V>(team, V::kHeld)), step_(team.lanes() * N), width_(width) {}

  __device__ void add_sums(const void* weights, C (&sums)[2]) const {
    for (uint32_t c = first_; c < width_; c += step_) norm::add_sums<V>(slice(c), weights, c, sums);
  }
  /// dweight is summed in the block's row of the workspace, where it has one; each channel by one thread.
  __device__ void write_gradients(const void* weights, const Factors<C>& by, C* partial,
                                  bool first_row) const {
    for (uint32_t c = first_; c < width_; c += step_) {
      C dweight[N] = {};
      norm::write_gradients<V>(slice(c), weights, by, row_, c, dweight);
      if (!partial) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) partial[c + n] = first_row ? dweight[n] : partial[c + n] + dweight[n];
    }
  }

 private:
  __device__ Slice<V> slice(uint32_t channel) const {
    Slice<V> slice;
    slice.load(row_, channel, width_);
    return slice;
  }
  const Pointers<V>& row_;
  uint32_t first_, step_, width_;
};

/// The block's row of the workspace from its threads' sums; all threads call it.
template <class V, class C, int kHeld, int N>
__device__ void write_partial(const typename V::Team& team, const C (&dweight)[kHeld][N], uint32_t width,
                              C* partial) {
  if constexpr (V::Team::kIsBlock) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t c = channel_of<V>(team, i);
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (c < width) partial[c + n] = dweight[i][n];
    }
  } else {
    __shared__ C sums[kWarps][kWarpSize * kHeld * N];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const C of_warp = sum_across(dweight[i][n], static_cast<int>(team.lanes()));
        if (threadIdx.x % kWarpSize < team.lanes())
          sums[threadIdx.x / kWarpSize][channel_of<V>(team, i) + n] = of_warp;
      }
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < width; c += kBlock) {
      C sum = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp][c];
      partial[c] = sum;
    }
  }
}

template <class V>
__global__ void __launch_bounds__(kBlock, 2) backward_kernel(BackwardCall call) {
  using C = typename V::Real;
  constexpr int N = V::kVector, kHeld = V::kHeld;
  typename V::Team team(call.rows);
  C* const partial =
      call.partials ? static_cast<C*>(call.partials) + int64_t{blockIdx.x} * call.rows.width : nullptr;
  const int64_t mine = int64_t{blockIdx.x} * team.count(), step = int64_t{gridDim.x} * team.count();
  C dweight[kHeld][N] = {};
  for (int64_t first = mine; first < call.rows.count; first += step) {
    const RowOfTeam row(call.rows, team, first);
    const Pointers<V> at(call, row);
    Slice<V> held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i].load(at, channel_of<V>(team, i), row.width);
    C sums[2] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t c = channel_of<V>(team, i);
      if (c < row.width) add_sums<V>(held[i], call.weight, c, sums);
    }
    const Beyond<V> beyond(team, at, row.width);
    if constexpr (V::Team::kIsBlock) beyond.add_sums(call.weight, sums);
    team.sum(sums);
    const C inverse = inverse_root(sums[0] * C(call.scale) + C(call.eps));
    const Factors<C> by{inverse, sums[1] * inverse * C(call.scale)};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t c = channel_of<V>(team, i);
      if (c < row.width) write_gradients<V>(held[i], call.weight, by, at, c, dweight[i]);
    }
    if constexpr (V::Team::kIsBlock) beyond.write_gradients(call.weight, by, partial, first == mine);
  }
  if (partial) write_partial<V>(team, dweight, call.rows.width, partial);
}

constexpr int kSumColumns = 32, kSumGroups = 32;

/// dweight [width] = the sum of partials [count, width]: every 32nd in order, then the 32 sums in order.
template <class C>
__global__ void __launch_bounds__(kSumColumns* kSumGroups)
    add_partials_kernel(const C* partials, int count, uint32_t width, C* dweight) {
  __shared__ C sums[kSumGroups][kSumColumns];
  const uint32_t channel = blockIdx.x * kSumColumns + threadIdx.x;
  C sum = 0;
  if (channel < width) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.y); i < count; i += kSumGroups)
      sum += partials[int64_t{i} * width + channel];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= width) return;
  sum = 0;
  for (int group = 0; group < kSumGroups; ++group) sum += sums[group][threadIdx.x];
  dweight[channel] = sum;
}

struct Backward {
  template <class X, class Y, bool kGated>
  void run() const {
    constexpr int N = kVectorWidth<X>;
    const bool vectors = call.width % N == 0 && given.x.is_aligned<X, N>() && given.gate.is_aligned<X, N>() &&
                         given.dy.is_aligned<Y, N>() && is_aligned<X, N>(given.dx) &&
                         is_aligned<X, N>(given.dgate) && is_aligned<float, 4>(given.weight);
    int64_t blocks = 0;
    if (call.tokens * call.heads > 0)
      with_team<X, Y, kGated, kGated ? kGatedChannels : kPlainChannels>(
          vectors, call.width, [&]<class V>(V, int log2_lanes) {
            BackwardCall all = given;
            all.rows = rows_of(call, log2_lanes);
            const int64_t each = rows_at_once<typename V::Team>(all.rows);
            blocks = (all.rows.count + each - 1) / each;
            if (all.partials) blocks = std::min(blocks, kMaxPartials);
            backward_kernel<V><<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(all);
          });
    if (dweight) add_partials<Arithmetic<X>>(blocks);
  }
  template <class C>
  void add_partials(int64_t count) const {
    const auto groups = static_cast<unsigned>((call.width + kSumColumns - 1) / kSumColumns);
    add_partials_kernel<<<groups, dim3(kSumColumns, kSumGroups), 0, stream>>>(
        static_cast<const C*>(given.partials), static_cast<int>(count), static_cast<uint32_t>(call.width),
        static_cast<C*>(dweight));
  }

  const Normalization& call;
  const BackwardCall& given;
  void* dweight;
  CUstream_st* stream;
};

}  // namespace

int64_t backward_workspace(const Normalization& call) {
  const int64_t number = call.input == Scalar::kFloat64 ? sizeof(double) : sizeof(float);
  return std::min(call.tokens * call.heads, kMaxPartials) * call.width * number;
}

const char* backward(const Normalization& call, const View& dy, const RmsNormGradients& out, void* workspace,
                     CUstream_st* stream) {
  if (out.dweight && !workspace && call.tokens * call.heads > 0) return "dweight needs a workspace";
  if (!out.dweight && call.tokens * call.heads == 0) return nullptr;
  const BackwardCall given{.rows = {},
                           .x = {call.in.x, call.tokens, call.heads},
                           .gate = {call.in.gate, call.tokens, call.heads},
                           .dy = {dy, call.tokens, call.heads},
                           .weight = call.in.weight,
                           .dx = out.dx,
                           .dgate = out.dgate,
                           .partials = out.dweight ? workspace : nullptr,
                           .scale = call.scale,
                           .eps = call.eps};
  return launched(call, Backward{call, given, out.dweight, stream});
}

}  // namespace prism::kernels::cuda::norm
