// Reads every state once and writes it once. With the sums e^T S and q^T S of the old state in hand, the new
// state and the output follow without another pass:
//   S' = a S - a b k_1 (e^T S) + sum_l k_l w_l^T
//   q^T S' = a (q^T S) - a b (q^T k_1) (e^T S) + sum_l (q^T k_l) w_l^T
// A block holds a slice of columns of one state in registers: a thread kRows consecutive rows of 16 bytes,
// kLanes threads side by side, as many groups of rows as K needs. The sums over the rows go through the warp,
// then through shared memory; that is the only barrier.
#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/prism_step_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kRows = 8;

/// A row of a new state. Measured: fp32 states gain from waiting in the L2 cache to be written back, bf16
/// ones from leaving it first.
template <class State, int N>
__device__ void store_row(const Vector<State, N>& x, State* to) {
  if constexpr (sizeof(State) == sizeof(float))
    *reinterpret_cast<Vector<State, N>*>(to) = x;
  else
    store_once(x, to);
}

struct StepCall {
  PrismChunkInputs in;
  void *state, *o;
  uint32_t heads, group;  ///< value heads; those that share a key head
  uint32_t slices;        ///< of the columns of a state
  int K, V, steps;
  float scale;
};

/// The block's slice of columns, and what its warps tell each other about it.
template <class State, int kLanes>
struct Slice {
  static constexpr int kColumns = kVectorWidth<State>, kWidth = kLanes * kColumns;
  static constexpr int kWarpRows = kWarpSize / kLanes * kRows;
  static constexpr int kMaxWarps = kMaxStepWidth / kWarpRows;

  float erased[kMaxWarps][kWidth], read[kMaxWarps][kWidth];  ///< shares of e^T S and q^T S
  float products[kMaxWarps][kMaxStepWrites];                 ///< shares of q^T k_l
};

/// Where a thread works.
template <class Shared>
struct Place {
  static constexpr int kLanes = Shared::kWidth / Shared::kColumns;

  __device__ explicit Place(const StepCall& call)
      : lane(threadIdx.x % kWarpSize),
        warp(threadIdx.x / kWarpSize),
        in_slice(lane % kLanes * Shared::kColumns),
        row(warp * Shared::kWarpRows + lane / kLanes * kRows) {
    const uint32_t state = blockIdx.x / call.slices;
    column = static_cast<int>(blockIdx.x % call.slices) * Shared::kWidth + in_slice;
    index = state;
    token = state / call.heads;
    head = state % call.heads;
    key_head = static_cast<uint32_t>(head) / call.group;
    has_rows = row < call.K;
    mine = has_rows && column < call.V;
  }

  int lane, warp, in_slice, row, column;
  int64_t index, token, head, key_head;
  bool has_rows, mine;
};

/// N channels of one head, from `first`, in fp32; zeros unless `wanted`.
template <class T, int N>
__device__ void load_channels(const View& view, int64_t token, int64_t step, int64_t head, int first,
                              bool wanted, float (&out)[N]) {
  const T* from = static_cast<const T*>(view.data) + token * view.token_stride + step * view.step_stride +
                  head * view.head_stride + first;
  Vector<T, N> loaded = {};
  if (wanted) loaded = *reinterpret_cast<const Vector<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = widen(loaded.at[i]);
}

/// Asks for what a slice needs besides its state, so that its loads find it in the L2 cache.
template <class T, class Shared>
__device__ void prefetch_operands(const StepCall& call, int steps, const Place<Shared>& at) {
  const auto ask = [](const View& view, int64_t token, int64_t step, int64_t head, int first) {
    const T* const from = static_cast<const T*>(view.data) + token * view.token_stride +
                          step * view.step_stride + head * view.head_stride + first;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  };
  if (!at.mine) return;
  if (at.in_slice == 0) {  // one thread a group of rows
    ask(call.in.q, at.token, 0, at.key_head, at.row);
    if (call.in.erase_read.data) ask(call.in.erase_read, at.token, 0, at.key_head, at.row);
    for (int l = 0; l < steps; ++l) ask(call.in.k, at.token, l, at.key_head, at.row);
  }
  if (at.row == 0)
    for (int l = 0; l < steps; ++l) ask(call.in.w, at.token, l, at.head, at.column);
}

__device__ float load_gate(const View& view, int64_t token, int64_t head) {
  return static_cast<const float*>(view.data)[token * view.token_stride + head * view.head_stride];
}

template <class T, int kLanes, class Shared>
__device__ void share_key_products(const StepCall& call, int steps, const Place<Shared>& at,
                                   const float (&q)[kRows], Shared& shared) {
#pragma unroll
  for (int l = 0; l < steps; ++l) {
    float key[kRows], product = 0;
    load_channels<T>(call.in.k, at.token, l, at.key_head, at.row, at.has_rows, key);
#pragma unroll
    for (int i = 0; i < kRows; ++i) product += q[i] * key[i];
    product = sum_across(product, kLanes);
    if (at.lane == 0) shared.products[at.warp][l] = product;
  }
}

/// e^T S and q^T S over the warp's rows.
template <int kLanes, class State, int kColumns, class Shared>
__device__ void share_row_sums(const Vector<State, kColumns> (&s)[kRows], const float (&e)[kRows],
                               const float (&q)[kRows], const Place<Shared>& at, Shared& shared) {
  float erased[kColumns] = {}, read[kColumns] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      erased[c] += e[i] * widen(s[i].at[c]);
      read[c] += q[i] * widen(s[i].at[c]);
    }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    erased[c] = sum_across(erased[c], kLanes);
    read[c] = sum_across(read[c], kLanes);
    if (at.lane >= kLanes) continue;
    shared.erased[at.warp][at.in_slice + c] = erased[c];
    shared.read[at.warp][at.in_slice + c] = read[c];
  }
}

/// Without this the compiler keeps the widened numbers of a bf16 state across the barrier, in twice the
/// registers.
template <class State, int kColumns>
__device__ void keep_packed(Vector<State, kColumns> (&s)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    int4 raw = *reinterpret_cast<const int4*>(&s[i]);
    asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
    s[i] = *reinterpret_cast<const Vector<State, kColumns>*>(&raw);
  }
}

template <int kColumns, int kWidth>
__device__ void total_of_warps(const float (*shares)[kWidth], int warps, int first, float factor,
                               float (&out)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out[c] = 0;
  for (int warp = 0; warp < warps; ++warp)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) out[c] += shares[warp][first + c];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out[c] *= factor;
}

/// o of the thread's columns. `erased`: -a b (e^T S).
template <class T, class Shared, int kColumns>
__device__ void write_output(const StepCall& call, int steps, int warps, float a, const Place<Shared>& at,
                             const Shared& shared, const float (&erased)[kColumns]) {
  float o[kColumns];
  total_of_warps(shared.read, warps, at.in_slice, a, o);
#pragma unroll
  for (int l = 0; l < steps; ++l) {
    float value[kColumns], product = 0;
    load_channels<T>(call.in.w, at.token, l, at.head, at.column, true, value);
    for (int warp = 0; warp < warps; ++warp) product += shared.products[warp][l];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) o[c] += product * (l == 0 ? value[c] + erased[c] : value[c]);
  }
  Vector<T, kColumns> out;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out.at[c] = narrow<T>(call.scale * o[c]);
  *reinterpret_cast<Vector<T, kColumns>*>(static_cast<T*>(call.o) + at.index * call.V + at.column) = out;
}

/// The thread's part of the new state, kGroup rows at a time to spare registers.
template <class T, class State, int kColumns, class Shared>
__device__ void write_state(const StepCall& call, int steps, float a, const Place<Shared>& at,
                            const float (&erased)[kColumns], const Vector<State, kColumns> (&s)[kRows],
                            State* state) {
  constexpr int kGroup = 32 / kColumns;
#pragma unroll
  for (int first = 0; first < kRows; first += kGroup) {
    float next[kGroup][kColumns];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) next[i][c] = a * widen(s[first + i].at[c]);
#pragma unroll
    for (int l = 0; l < steps; ++l) {
      float key[kGroup], value[kColumns];
      load_channels<T>(call.in.k, at.token, l, at.key_head, at.row + first, true, key);
      load_channels<T>(call.in.w, at.token, l, at.head, at.column, true, value);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (l == 0) value[c] += erased[c];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) next[i][c] += key[i] * value[c];
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      Vector<State, kColumns> out;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out.at[c] = narrow<State>(next[i][c]);
      store_row(out, state + (first + i) * call.V);
    }
  }
}

template <class T, class State, int kLanes, int kSteps>
__global__ void __launch_bounds__(Slice<State, kLanes>::kMaxWarps* kWarpSize, 3) step_kernel(StepCall call) {
  using Shared = Slice<State, kLanes>;
  constexpr int kColumns = Shared::kColumns;
  __shared__ Shared shared;
  const Place<Shared> at(call);
  const int steps = kSteps ? kSteps : call.steps, warps = static_cast<int>(blockDim.x) / kWarpSize;
  const bool mine = at.mine;
  State* const state = static_cast<State*>(call.state) + (at.index * call.K + at.row) * call.V + at.column;
  Vector<State, kColumns> s[kRows] = {};
  if (mine) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      s[i] = *reinterpret_cast<const Vector<State, kColumns>*>(state + i * call.V);
  }
  prefetch_operands<T>(call, steps, at);
  const View& reading = call.in.erase_read.data ? call.in.erase_read : call.in.k;
  float q[kRows], e[kRows];
  load_channels<T>(call.in.q, at.token, 0, at.key_head, at.row, at.has_rows, q);
  load_channels<T>(reading, at.token, 0, at.key_head, at.row, at.has_rows, e);
  const float a = expf(load_gate(call.in.g, at.token, at.head)), b = load_gate(call.in.b, at.token, at.head);

  share_key_products<T, kLanes>(call, steps, at, q, shared);
  share_row_sums<kLanes>(s, e, q, at, shared);
  __syncthreads();
  keep_packed(s);
  if (!mine) return;
  float erased[kColumns];
  total_of_warps(shared.erased, warps, at.in_slice, -a * b, erased);
  if (at.row == 0) write_output<T>(call, steps, warps, a, at, shared, erased);
  write_state<T>(call, steps, a, at, erased, s, state);
}

template <class T, class State, int kLanes>
const char* launch(const PrismChunkShape& shape, StepCall call, CUstream_st* stream) {
  using Shared = Slice<State, kLanes>;
  call.slices = (call.V + Shared::kWidth - 1) / Shared::kWidth;
  const int64_t blocks = shape.sequences.count * shape.heads * call.slices;
  if (blocks > INT32_MAX) return "too many states for one launch";
  const int warps = (call.K + Shared::kWarpRows - 1) / Shared::kWarpRows;
  const auto run = [&](auto* kernel) {
    kernel<<<dim3(static_cast<unsigned>(blocks)), dim3(warps * kWarpSize), 0, stream>>>(call);
  };
  if (call.steps == 1)
    run(step_kernel<T, State, kLanes, 1>);
  else if (call.steps == 2)
    run(step_kernel<T, State, kLanes, 2>);
  else
    run(step_kernel<T, State, kLanes, 0>);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T>
const char* launch_with_state(const PrismChunkShape& shape, const StepCall& call, Scalar state_type,
                              CUstream_st* stream) {
  if (state_type == Scalar::kBFloat16) return launch<T, __nv_bfloat16, 8>(shape, call, stream);
  return launch<T, float, 8>(shape, call, stream);
}

}  // namespace

const char* prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, Scalar state_type,
                       void* state, void* o, CUstream_st* stream) {
  const auto fits = [](int64_t width) { return width > 0 && width % 8 == 0 && width <= kMaxStepWidth; };
  if (!fits(shape.key_width) || !fits(shape.value_width)) return "K and V must be multiples of 8 up to 256";
  if (shape.steps < 1 || shape.steps > kMaxStepWrites) return "L must be 1 to 8";
  if (state_type != Scalar::kFloat32 && state_type != Scalar::kBFloat16)
    return "the state must be fp32 or bf16";
  if (shape.sequences.count == 0) return nullptr;
  const StepCall call{.in = in,
                      .state = state,
                      .o = o,
                      .heads = static_cast<uint32_t>(shape.heads),
                      .group = static_cast<uint32_t>(shape.heads / shape.key_heads),
                      .slices = 1,
                      .K = static_cast<int>(shape.key_width),
                      .V = static_cast<int>(shape.value_width),
                      .steps = static_cast<int>(shape.steps),
                      .scale = static_cast<float>(shape.scale)};
  switch (shape.dtype) {
    case Scalar::kFloat32:
      return launch_with_state<float>(shape, call, state_type, stream);
    case Scalar::kBFloat16:
      return launch_with_state<__nv_bfloat16>(shape, call, state_type, stream);
    case Scalar::kFloat16:
      return launch_with_state<__half>(shape, call, state_type, stream);
    case Scalar::kFloat64:
      break;
  }
  return "fp64 has no kernel";
}

}  // namespace prism::kernels::cuda
