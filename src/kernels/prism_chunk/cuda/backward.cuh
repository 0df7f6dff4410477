#pragma once
// What the two kernels of the backward share. Letters as in ../README.md; the plan in backward.md.
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/segments.cuh"

namespace prism::kernels::cuda {

constexpr int kChunk = 64, kTileBytes = kChunk * kPanelRowBytes;

/// One window of the backward: slots [first, end) of the schedule with 64 tokens a piece. Records (solve.h)
/// and d_states hold this window alone.
struct BackwardParams {
  CUtensorMap q, k, w, d_o, y;
  Schedule schedule;
  Segments segments;
  int64_t first = 0, end = 0;
  const uint8_t* records = nullptr;
  const uint8_t* states = nullptr;    // S at the chunks' starts, of all slots (solve.h)
  uint8_t* d_states = nullptr;        // dS at the chunks' ends, laid out as the states
  const char* transitions = nullptr;  // of the segments, which the forward kept (segments.cuh)
  char* segment_states = nullptr;     // dS before every segment, from zeros after it
  const char* carried = nullptr;      // dS of the segment that the window's end cuts
  char* carry = nullptr;              // dS of the segment that its start cuts, for the next window
  const float* d_final = nullptr;
  float* d_initial = nullptr;
  void *dq = nullptr, *dk = nullptr, *dw = nullptr;
  float *db = nullptr, *dg = nullptr;
  int steps = 1, key_heads = 1, heads = 1, key_width = 64, value_width = 64;
  float scale = 1;
};

/// 64 tokens, or the last ones of a sequence.
struct Chunk {
  int64_t token;
  int count;
};

// Operands of products in shared memory; `at(s)` describes contraction indices 16 s .. 16 s + 15.

/// A matrix of 64 rows in panels; the contraction runs over its columns.
struct AlongColumns {
  static constexpr Major kMajor = Major::kContraction;
  uint32_t address;
  __device__ uint64_t at(int s) const { return contraction_major(address + s / 4 * kTileBytes + s % 4 * 32); }
};
/// The same matrix; the contraction runs over its 64 rows.
struct AlongRows {
  static constexpr Major kMajor = Major::kRows;
  uint32_t address;
  __device__ uint64_t at(int s) const { return row_major(address + 2048 * s, kTileBytes); }
};
/// One slice (64 of V) of a state as solve.h lays it out; the contraction runs over K.
struct AlongKeys {
  static constexpr Major kMajor = Major::kContraction;
  uint32_t address;
  __device__ uint64_t at(int s) const { return block_contraction_major(address + 2048 * s, 1024, 128); }
};
/// A state of K = D; the contraction runs over V, slice after slice.
template <int D>
struct AlongValues {
  static constexpr Major kMajor = Major::kRows;
  uint32_t address;
  __device__ uint64_t at(int s) const {
    return block_row_major(address + s / 4 * (D * kPanelRowBytes) + s % 4 * 256, 128, 1024);
  }
};

/// Hides where an address comes from, or the compiler holds all that is derived from it (the descriptors of
/// every product) in registers around the loops over chunks, heads and steps.
__device__ __forceinline__ uint32_t opaque(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

/// d (+)= A B over 16 kSteps of the contraction; issued, not awaited.
template <class T, int kSteps, int R, class A, class B>
__device__ __forceinline__ void multiply(float (&d)[R], A a, B b, bool accumulate) {
  a.address = opaque(a.address);
  b.address = opaque(b.address);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    Wgmma<2 * R>::template ss<T, A::kMajor, B::kMajor>(d, a.at(s), b.at(s), accumulate || s > 0);
}
/// The same with A in registers.
template <class T, int R, int kSteps, class B>
__device__ __forceinline__ void multiply(float (&d)[R], const uint32_t (&a)[kSteps][4], B b,
                                         bool accumulate) {
  b.address = opaque(b.address);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    Wgmma<2 * R>::template rs<T, B::kMajor>(d, a[s], b.at(s), accumulate || s > 0);
}
/// The A operands of all columns of an accumulator.
template <class T, int R, int kSteps>
__device__ __forceinline__ void operands_of(uint32_t (&a)[kSteps][4], const float (&d)[R]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) operand_of<T>(a[s], d, s);
}

/// This thread's place in an accumulator: rows `row` and row + 8, columns 8 n + `column` and the next.
struct Place {
  int warp = threadIdx.x / 32 % 4, group = threadIdx.x % 32 / 4;
  int row = 16 * warp + group, column = 2 * (threadIdx.x % 4);
};

/// The thread's index, read anew: what is computed from it holds no registers from one use to the next.
__device__ __forceinline__ int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ inline uint32_t load_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void load_words(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
__device__ inline float load_float(uint32_t address) { return __uint_as_float(load_word(address)); }
__device__ inline float2 load_floats(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_float(uint32_t address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
/// f(element, pair) for the pairs of neighbouring elements of a matrix of 64 rows that lie where an
/// accumulator's elements `element` and the next do.
template <class T, int R, class F>
__device__ __forceinline__ void each_pair(uint32_t matrix, F f) {
  matrix = opaque(matrix);
#pragma unroll
  for (int s = 0; s < R / 8; ++s) {
    uint32_t a[4];
    load_operand(a, matrix + s / 4 * kTileBytes, s % 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) f(8 * s + 2 * i, unpack<T>(a[i]));
  }
}

/// sums[r] += factor[r] sum over columns of d * matrix.
template <class T, int R>
__device__ __forceinline__ void add_row_products(float (&sums)[2], const float (&d)[R],
                                                 const float (&factor)[2], uint32_t matrix) {
  float sum[2] = {};
  each_pair<T, R>(matrix, [&](int i, float2 x) { sum[i / 2 % 2] += d[i] * x.x + d[i + 1] * x.y; });
  sums[0] += factor[0] * sum[0];
  sums[1] += factor[1] * sum[1];
}

/// 64 rows of one head in `panels` panels.
__device__ inline void load_rows(uint32_t to, const CUtensorMap& map, int64_t token, int64_t head, int step,
                                 int panels, uint32_t barrier) {
  for (int panel = 0; panel < panels; ++panel)
    tensor_load(to + panel * kTileBytes, &map, 0, static_cast<int>(token), panel, static_cast<int>(head),
                step, barrier);
}

/// Sum over the four threads that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Rows `first` .. 63 of a matrix of 64 rows become zero: what lies past a sequence's end. Rare, so not
/// unrolled: the kernels' instructions have to stay in the cache.
__device__ __forceinline__ void clear_rows(uint32_t matrix, int bytes, int first, int thread, int threads) {
#pragma unroll 1
  for (int panel = 0; panel < bytes; panel += kTileBytes)
#pragma unroll 1
    for (int i = first * kPanelRowBytes + 16 * thread; i < kTileBytes; i += 16 * threads)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(matrix + panel + i), "r"(0) : "memory");
}

/// Four words of each of the four threads of a quad, transposed: thread t gets word t of each.
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4]) {
  const auto exchange = [&](int i, int j, int lanes) {
    const bool upper = threadIdx.x & lanes;
    const uint32_t other = __shfl_xor_sync(~0u, upper ? x[i] : x[j], lanes);
    x[i] = upper ? other : x[i];
    x[j] = upper ? x[j] : other;
  };
  exchange(0, 1, 1);
  exchange(2, 3, 1);
  exchange(0, 2, 2);
  exchange(1, 3, 2);
}

/// The accumulator's rows below `count`, `width` columns of them, to global rows of `stride` elements.
template <class T, int R>
__device__ __forceinline__ void write_rows(void* to, int64_t stride, const float (&d)[R], int count,
                                           int width, const Place& at) {
#pragma unroll
  for (int n = 0; n < R / 4; n += 4)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack<T>(d[4 * (n + i) + 2 * r], d[4 * (n + i) + 2 * r + 1]);
      transpose_quad(x);
      const int row = at.row + 8 * r, column = 8 * (n + threadIdx.x % 4);
      if (row < count && column < width)
        *reinterpret_cast<uint4*>(static_cast<T*>(to) + row * stride + column) = {x[0], x[1], x[2], x[3]};
    }
}

}  // namespace prism::kernels::cuda
