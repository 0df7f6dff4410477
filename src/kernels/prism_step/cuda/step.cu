// Reads every state once and writes it once. With the sums e^T S and q^T S of the old state in hand, the new
// state and the output follow without another pass:
//   S' = a S - a b k_1 (e^T S) + sum_l k_l w_l^T
//   q^T S' = a (q^T S) - a b (q^T k_1) (e^T S) + sum_l (q^T k_l) w_l^T
// A block holds a slice of columns of one state in registers: a thread kRows consecutive rows of 16 bytes,
// kLanes threads side by side, as many groups of rows as K needs. The sums over the rows go through the warp,
// then through shared memory; that is the only barrier. Instructions are as scarce as bytes here.
#include "kernels/cuda/vectors.cuh"
#include "prism/kernels/prism_step_cuda.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kRows = 8, kLanes = 8;
constexpr int kRowGroups = kWarpSize / kLanes, kWarpRows = kRowGroups * kRows;
constexpr int kMaxWarps = kMaxStepWidth / kWarpRows;

struct StepCall {
  Strided q, k, w, b, g, erase_read;
  void *state, *o;
  uint32_t heads, group;  ///< value heads; those that share a key head
  uint32_t slices;        ///< of the columns of a state
  int K, V, steps;
  float scale;
};

/// A column's share of e^T S and q^T S are kSums apart in the sums of a thread.
template <class State>
struct Shared {
  static constexpr int kColumns = kVectorWidth<State>, kSums = 2 * kColumns;

  /// A warp's e^T S, then its q^T S, by group of columns.
  alignas(16) float sums[kMaxWarps][kLanes][kSums];
  float products[kMaxWarps][kMaxStepWrites];  ///< a warp's q^T k_l
};

/// Where a thread works.
struct Place {
  __device__ Place(const StepCall& call, int columns)
      : lane(threadIdx.x % kWarpSize),
        warp(threadIdx.x / kWarpSize),
        group(lane / kLanes),
        row(warp * kWarpRows + group * kRows),
        state(blockIdx.x / call.slices),
        column((blockIdx.x % call.slices * kLanes + lane % kLanes) * columns),
        token(state / call.heads),
        head(state % call.heads),
        key_head(head / call.group),
        has_rows(row < call.K),
        mine(has_rows && column < call.V) {}

  int lane, warp, group, row;
  uint32_t state;
  int column;
  uint32_t token, head, key_head;
  bool has_rows, mine;
};

template <class T, int N>
__device__ Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

template <class T, int N>
__device__ void widen_all(const Vector<T, N>& x, float (&out)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = widen(x.at[i]);
}

/// The thread's channels of a key or a query; zeros beyond K.
template <class T>
__device__ Vector<T, kRows> key_channels(const Strided& x, const Place& at, uint32_t step) {
  Vector<T, kRows> out = {};
  if (at.has_rows) out = load<T, kRows>(x.at<T>(at.token, step, at.key_head, at.row));
  return out;
}

/// Sums x over the groups of rows of a warp. Group r of lanes returns entries r N / kRowGroups and on: each
/// exchange halves what is left to add.
template <int N>
__device__ void sum_groups(float (&x)[N], int group) {
  static_assert(kRowGroups == 4 && N % 4 == 0);
  const bool upper = group & 2, odd = group & 1;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float kept = upper ? x[i + N / 2] : x[i], given = upper ? x[i] : x[i + N / 2];
    x[i] = kept + __shfl_xor_sync(~0u, given, 2 * kLanes);
  }
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float kept = odd ? x[i + N / 4] : x[i], given = odd ? x[i] : x[i + N / 4];
    x[i] = kept + __shfl_xor_sync(~0u, given, kLanes);
  }
}

/// e^T S and q^T S over the warp's rows.
template <class State>
__device__ void share_sums(const Vector<State, kVectorWidth<State>> (&s)[kRows], const float (&e)[kRows],
                           const float (&q)[kRows], const Place& at, Shared<State>& shared) {
  constexpr int kColumns = Shared<State>::kColumns, kSums = Shared<State>::kSums;
  float sums[kSums] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float x = widen(s[i].at[c]);
      sums[c] += e[i] * x;
      sums[kColumns + c] += q[i] * x;
    }
  sum_groups(sums, at.group);
  constexpr int kKept = kSums / kRowGroups;
  Vector<float, kKept> kept;
#pragma unroll
  for (int i = 0; i < kKept; ++i) kept.at[i] = sums[i];
  *reinterpret_cast<Vector<float, kKept>*>(&shared.sums[at.warp][at.lane % kLanes][at.group * kKept]) = kept;
}

template <class State>
__device__ void share_product(const float (&q)[kRows], const float (&key)[kRows], int step, const Place& at,
                              Shared<State>& shared) {
  float product = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) product += q[i] * key[i];
  product = sum_across(product, kLanes);
  if (at.lane == 0) shared.products[at.warp][step] = product;
}

/// `factor` times the sum over the warps, for the thread's columns; `first`: 0 for e^T S, kColumns for q^T S.
template <class State, int kColumns>
__device__ void total(const Shared<State>& shared, int warps, const Place& at, int first, float factor,
                      float (&out)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out[c] = 0;
  for (int warp = 0; warp < warps; ++warp)
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      const auto share = load<float, 4>(&shared.sums[warp][at.lane % kLanes][first + c]);
#pragma unroll
      for (int j = 0; j < 4; ++j) out[c + j] += share.at[j];
    }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out[c] *= factor;
}

/// The values to write with step l; those of the first carry the erase, -a b (e^T S).
template <class T, int kColumns>
__device__ void values_of(const StepCall& call, const Place& at, int l, const float (&erased)[kColumns],
                          float (&out)[kColumns]) {
  widen_all(load<T, kColumns>(call.w.at<T>(at.token, l, at.head, at.column)), out);
  if (l > 0) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) out[c] += erased[c];
}

/// o of the thread's columns.
template <class T, class State, int kColumns>
__device__ void write_output(const StepCall& call, int steps, int warps, float a, const Place& at,
                             const Shared<State>& shared, const float (&erased)[kColumns]) {
  float o[kColumns];
  total(shared, warps, at, kColumns, a, o);
#pragma unroll
  for (int l = 0; l < steps; ++l) {
    float value[kColumns], product = 0;
    values_of<T>(call, at, l, erased, value);
    for (int warp = 0; warp < warps; ++warp) product += shared.products[warp][l];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) o[c] += product * value[c];
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) o[c] *= call.scale;
  T* const to = static_cast<T*>(call.o) + (uint64_t{at.state} * call.V + at.column);
  *reinterpret_cast<Vector<T, kColumns>*>(to) = narrow_all<T>(o);
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

/// The thread's part of the new state. kSteps: all keys and values in registers, one row at a time.
template <class T, class State, int kSteps, int kColumns>
__device__ void write_state(const StepCall& call, float a, const Place& at, const float (&erased)[kColumns],
                            const Vector<State, kColumns> (&s)[kRows], State* state) {
  Vector<T, kRows> key[kSteps];
  float value[kSteps][kColumns];
#pragma unroll
  for (int l = 0; l < kSteps; ++l) {
    if (l >= call.steps) break;
    key[l] = key_channels<T>(call.k, at, l);
    values_of<T>(call, at, l, erased, value[l]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float next[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) next[c] = a * widen(s[i].at[c]);
#pragma unroll
    for (int l = 0; l < kSteps; ++l) {
      if (l >= call.steps) break;
      const float x = widen(key[l].at[i]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) next[c] += x * value[l][c];
    }
    *reinterpret_cast<Vector<State, kColumns>*>(state + i * call.V) = narrow_all<State>(next);
  }
}

/// kSteps: L, or for the last kernel the most that L can be.
template <class T, class State, int kSteps>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, kSteps <= 2 ? 3 : 1) step_kernel(StepCall call) {
  constexpr int kColumns = kVectorWidth<State>;
  __shared__ Shared<State> shared;
  if (kSteps <= 2) call.steps = kSteps;
  const Place at(call, kColumns);
  State* const state =
      static_cast<State*>(call.state) + ((uint64_t{at.state} * call.K + at.row) * call.V + at.column);
  Vector<State, kColumns> s[kRows] = {};
  if (at.mine) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i] = load<State, kColumns>(state + i * call.V);
  }
  float q[kRows], e[kRows];
  widen_all(key_channels<T>(call.q, at, 0), q);
  widen_all(key_channels<T>(call.k, at, 0), e);
  const float a = expf(*call.g.at<float>(at.token, 0, at.head, 0)),
              b = *call.b.at<float>(at.token, 0, at.head, 0);
  share_product(q, e, 0, at, shared);
#pragma unroll
  for (int l = 1; l < kSteps; ++l) {
    if (l >= call.steps) break;
    float key[kRows];
    widen_all(key_channels<T>(call.k, at, l), key);
    share_product(q, key, l, at, shared);
  }
  if (call.erase_read.data) widen_all(key_channels<T>(call.erase_read, at, 0), e);
  share_sums(s, e, q, at, shared);
  __syncthreads();
  keep_packed(s);
  if (!at.mine) return;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  float erased[kColumns];
  total(shared, warps, at, 0, -a * b, erased);
  if (at.row == 0) write_output<T>(call, call.steps, warps, a, at, shared, erased);
  write_state<T, State, kSteps>(call, a, at, erased, s, state);
}

template <class T, class State>
const char* launch(int64_t states, StepCall call, CUstream_st* stream) {
  constexpr int kWidth = kLanes * kVectorWidth<State>;
  call.slices = static_cast<uint32_t>((call.V + kWidth - 1) / kWidth);
  const int64_t blocks = states * call.slices;
  if (blocks > INT32_MAX) return "too many states for one launch";
  const int threads = (call.K + kWarpRows - 1) / kWarpRows * kWarpSize;
  const auto run = [&](auto* kernel) { kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(call); };
  if (call.steps == 1)
    run(step_kernel<T, State, 1>);
  else if (call.steps == 2)
    run(step_kernel<T, State, 2>);
  else
    run(step_kernel<T, State, kMaxStepWrites>);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T>
const char* launch_with_state(int64_t states, const StepCall& call, Scalar state_type, CUstream_st* stream) {
  if (state_type == Scalar::kBFloat16) return launch<T, __nv_bfloat16>(states, call, stream);
  return launch<T, float>(states, call, stream);
}

const char* check(const PrismChunkShape& shape, Scalar state_type) {
  const auto fits = [](int64_t width) { return width > 0 && width % 8 == 0 && width <= kMaxStepWidth; };
  if (!fits(shape.key_width) || !fits(shape.value_width)) return "K and V must be multiples of 8 up to 256";
  if (shape.steps < 1 || shape.steps > kMaxStepWrites) return "L must be 1 to 8";
  if (state_type != Scalar::kFloat32 && state_type != Scalar::kBFloat16)
    return "the state must be fp32 or bf16";
  return nullptr;
}

}  // namespace

const char* prism_step(const PrismChunkShape& shape, const PrismChunkInputs& in, Scalar state_type,
                       void* state, void* o, CUstream_st* stream) {
  if (const char* problem = check(shape, state_type)) return problem;
  Holder holder;
  const StepCall call{.q = holder.hold(in.q),
                      .k = holder.hold(in.k),
                      .w = holder.hold(in.w),
                      .b = holder.hold(in.b),
                      .g = holder.hold(in.g),
                      .erase_read = holder.hold(in.erase_read),
                      .state = state,
                      .o = o,
                      .heads = static_cast<uint32_t>(shape.heads),
                      .group = static_cast<uint32_t>(shape.heads / shape.key_heads),
                      .slices = 1,
                      .K = static_cast<int>(shape.key_width),
                      .V = static_cast<int>(shape.value_width),
                      .steps = static_cast<int>(shape.steps),
                      .scale = static_cast<float>(shape.scale)};
  if (!holder.fits()) return "a stride does not fit 32 bits";
  const int64_t states = shape.sequences.count * shape.heads;
  if (states == 0) return nullptr;
  switch (shape.dtype) {
    case Scalar::kFloat32:
      return launch_with_state<float>(states, call, state_type, stream);
    case Scalar::kBFloat16:
      return launch_with_state<__nv_bfloat16>(states, call, state_type, stream);
    case Scalar::kFloat16:
      return launch_with_state<__half>(states, call, state_type, stream);
    case Scalar::kFloat64:
      break;
  }
  return "fp64 has no kernel";
}

}  // namespace prism::kernels::cuda
