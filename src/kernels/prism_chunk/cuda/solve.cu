// T of every chunk. A warp takes one chunk of one key head: E E^T once, then for each value head that reads
// this key head the inverse of I + A, A = strict(diag(b) E E^T), before any decay (with b |e|^2 <= 2 its
// entries stay of the size of b), in 16x16 blocks:
//   D_i = inv(I + A_ii)                         fp32 substitution, one column a lane
//   T_ij = -D_i sum_{j <= m < i} A_im T_mj      tf32 tensor cores, from the diagonal down
// The blocks are kept transposed, so that the accumulator of one product is the A operand of the next;
// columns of a contraction may come in any order as long as both operands agree, here 2 t and 2 t + 1 for the
// hardware's t and t + 4. The next chunk's keys and gates are on their way meanwhile. Warps know nothing of
// each other.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kC = kChunkTokens, kBlock = 16, kBlocks = kC / kBlock, kTriangle = kBlocks * (kBlocks + 1) / 2;
constexpr int kBlocksAProcessor = 6;  // what shared memory holds at K = 128
constexpr float kLog2e = 1.44269504088896340736f, kLeastLogGate = -750;

struct SolveParams {
  CUtensorMap k;
  Schedule schedule;
  View b, g;
  char* records;
  int64_t first_slot, first_job, end_job;
  int heads, key_heads;
};

template <int kPanels>
struct Shared {
  alignas(1024) char keys[kPanels * kC * kPanelRowBytes];
  alignas(256) char record[kRecordBytes];
  alignas(16) float blocks[kTriangle][kBlock * kBlock];  // A below the diagonal, D on it
  alignas(8) uint64_t loaded;
};

/// Place of block (i, j), j <= i.
__device__ constexpr int triangle(int i, int j) { return i * (i + 1) / 2 + j; }
/// Place of an element in a block: rows 0 .. 3 of 8 columns lie in different banks.
__device__ constexpr int place(int row, int column) { return row * kBlock + (column ^ (row & 2) << 2); }

/// A chunk of one key head.
struct Job {
  int64_t id = 0;
  Piece chunk;
  int key_head = 0;
};

/// Log-gates (base 2) and strengths of the lane's two tokens.
struct Gates {
  float g[2], b[2];
};

__device__ float gate_at(const View& view, int64_t token, int head) {
  return __ldg(static_cast<const float*>(view.data) + token * view.token_stride + head * view.head_stride);
}

__device__ uint32_t tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

/// A 16x16 block of T, transposed and rounded to tf32: x[n][2 r + c] = block[8 n + 2 t + c][g + 8 r].
struct Block {
  uint32_t x[2][4];
};

/// sum += W A^T, A a block in shared memory.
__device__ void add_product(float (&sum)[2][4], const Block& W, const float* A) {
  const int t = threadIdx.x % 4, g = threadIdx.x / 4;
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 b = *reinterpret_cast<const float2*>(A + place(8 * n + g, 8 * s + 2 * t));
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
          : "r"(W.x[s][0]), "r"(W.x[s][2]), "r"(W.x[s][1]), "r"(W.x[s][3]), "r"(__float_as_uint(b.x)),
            "r"(__float_as_uint(b.y)));
    }
}

template <class T>
__device__ void add_gram(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define PRISM_MMA(TYPE)                                     \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE         \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};"                                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    PRISM_MMA("bf16.bf16");
  } else {
    PRISM_MMA("f16.f16");
  }
#undef PRISM_MMA
}

template <class T, int kPanels>
class Solve {
 public:
  __device__ Solve(const SolveParams& params, Shared<kPanels>& shared)
      : params_(params),
        shared_(shared),
        group_(params.heads / params.key_heads),
        lane_(threadIdx.x),
        t_(lane_ % 4),
        g_(lane_ / 4) {}

  __device__ void run() {
    Job job = find(params_.first_job + blockIdx.x);
    if (job.id >= params_.end_job) return;
    load_keys(job);
    Gates gates = fetch(job, 0);
    for (int parity = 0; job.id < params_.end_job; parity ^= 1) {
      barrier_wait(shared_address(&shared_.loaded), parity);
      float gram[kTriangle][2][4] = {};
      make_gram(gram);
      __syncwarp();
      const Job next = find(job.id + gridDim.x);
      if (next.id < params_.end_job) load_keys(next);
      for (int h = 0; h < group_; ++h) {
        const Gates now = gates;
        if (h + 1 < group_)
          gates = fetch(job, h + 1);
        else if (next.id < params_.end_job)
          gates = fetch(next, 0);
        store_gates(now, job.chunk.tokens);
        store_system(gram, job.chunk.tokens);
        invert_diagonal(0);
        invert_diagonal(2);
        __syncwarp();
        solve_column<0>();
        solve_column<1>();
        solve_column<2>();
        solve_column<3>();
        send(job, h);
      }
      job = next;
    }
    bulk_store_wait<0>();
  }

 private:
  /// The first job from `id` on whose slot has a chunk.
  __device__ Job find(int64_t id) const {
    Job job;
    for (job.id = id; job.id < params_.end_job; job.id += gridDim.x) {
      job.chunk = params_.schedule.locate(job.id / params_.key_heads, kC);
      job.key_head = static_cast<int>(job.id % params_.key_heads);
      if (job.chunk.tokens > 0) break;
    }
    return job;
  }

  __device__ void load_keys(const Job& job) const {
    if (lane_ != 0) return;
    const uint32_t loaded = shared_address(&shared_.loaded);
    barrier_arrive_expect(loaded, sizeof shared_.keys);
    tensor_load(shared_address(shared_.keys), &params_.k, 0, static_cast<int>(job.chunk.first_token), 0,
                job.key_head, 0, loaded);
  }

  __device__ Gates fetch(const Job& job, int h) const {
    Gates gates{};
    for (int i = 0; i < 2; ++i) {
      if (2 * lane_ + i >= job.chunk.tokens) continue;
      gates.g[i] = gate_at(params_.g, job.chunk.first_token + 2 * lane_ + i, job.key_head * group_ + h);
      gates.b[i] = gate_at(params_.b, job.chunk.first_token + 2 * lane_ + i, job.key_head * group_ + h);
    }
    return gates;
  }

  /// The blocks of E E^T on and below the diagonal. A slice of E is A operand of its rows and B operand of
  /// its columns.
  __device__ void make_gram(float (&gram)[kTriangle][2][4]) const {
#pragma unroll
    for (int s = 0; s < 4 * kPanels; ++s) {
      uint32_t e[kBlocks][4];
      const uint32_t panel = shared_address(shared_.keys) + s / 4 * kC * kPanelRowBytes;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        matrix_load(e[i], panel + swizzled(16 * i + lane_ % 16, 2 * (s % 4) + lane_ / 16));
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j <= i; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n) add_gram<T>(gram[triangle(i, j)][n], e[i], e[j][n], e[j][2 + n]);
    }
  }

  __device__ float* G() const { return reinterpret_cast<float*>(shared_.record + kRecordG); }
  __device__ float* b() const { return reinterpret_cast<float*>(shared_.record + kRecordB); }

  /// G and b into the record, once its last contents are on their way.
  __device__ void store_gates(const Gates& gates, int tokens) const {
    float g[2];
    for (int i = 0; i < 2; ++i) g[i] = 2 * lane_ + i < tokens ? fmaxf(gates.g[i], kLeastLogGate) * kLog2e : 0;
    float sum = g[0] + g[1];
    for (int offset = 1; offset < kWarpLanes; offset *= 2) {
      const float before = __shfl_up_sync(~0u, sum, offset);
      if (lane_ >= offset) sum += before;
    }
    float start = __shfl_up_sync(~0u, sum, 1);
    if (lane_ == 0) start = 0;
    if (lane_ == 0) bulk_store_wait_read<0>();
    __syncwarp();
    *reinterpret_cast<float2*>(G() + 2 * lane_) = {start + g[0], start + g[0] + g[1]};
    *reinterpret_cast<float2*>(b() + 2 * lane_) = {gates.b[0], gates.b[1]};
    __syncwarp();
  }

  /// A from the Gram matrix; rows beyond the sequence's end are 0, whatever the copy engine found there.
  __device__ void store_system(const float (&gram)[kTriangle][2][4], int tokens) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = g_ + 8 * r;
        const bool inside = 16 * i + row < tokens;
        const float strength = b()[16 * i + row];
#pragma unroll
        for (int j = 0; j <= i; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float* x = gram[triangle(i, j)][n] + 2 * r;
            float2 a = {inside ? strength * x[0] : 0, inside ? strength * x[1] : 0};
            if (j < i) a = {__uint_as_float(tf32(a.x)), __uint_as_float(tf32(a.y))};
            *reinterpret_cast<float2*>(shared_.blocks[triangle(i, j)] + place(row, 8 * n + 2 * t_)) = a;
          }
      }
    __syncwarp();
  }

  /// Diagonal blocks `first` and `first` + 1: half a warp each, a lane a column; only what lies below the
  /// diagonal is read.
  __device__ void invert_diagonal(int first) const {
    const int j = lane_ % kBlock;
    float* A = shared_.blocks[lane_ < kBlock ? triangle(first, first) : triangle(first + 1, first + 1)];
    float x[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float row[kBlock];
#pragma unroll
      for (int m = 0; m < i; m += 4)
        *reinterpret_cast<float4*>(row + m) = *reinterpret_cast<const float4*>(A + place(i, m));
      float sum = i == j;
#pragma unroll
      for (int m = 0; m < i; ++m) sum -= row[m] * x[m];
      x[i] = sum;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlock; ++i) A[place(i, j)] = __uint_as_float(tf32(x[i]));
  }

  template <int j>
  __device__ void solve_column() const {
    Block column[kBlocks - j];
    const float* D = shared_.blocks[triangle(j, j)];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        column[0].x[n][c] = __float_as_uint(D[place(8 * n + 2 * t_ + c % 2, g_ + 8 * (c / 2))]);
    store_block(column[0], j, j);
#pragma unroll
    for (int below = 1; below < kBlocks - j; ++below) {
      float sum[2][4] = {}, out[2][4] = {};
#pragma unroll
      for (int m = 0; m < below; ++m) add_product(sum, column[m], shared_.blocks[triangle(j + below, j + m)]);
      Block negated;
#pragma unroll
      for (int c = 0; c < 8; ++c) negated.x[c / 4][c % 4] = tf32(-sum[c / 4][c % 4]);
      add_product(out, negated, shared_.blocks[triangle(j + below, j + below)]);
#pragma unroll
      for (int c = 0; c < 8; ++c) column[below].x[c / 4][c % 4] = tf32(out[c / 4][c % 4]);
      store_block(column[below], j + below, j);
    }
  }

  /// Gam times the block, into T's block (i, j).
  __device__ void store_block(const Block& block, int i, int j) const {
    uint32_t out[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 row = *reinterpret_cast<const float2*>(G() + 16 * i + 8 * n + 2 * t_);
        const float column = G()[16 * j + g_ + 8 * r];
        out[n][r] = pack<T>(__uint_as_float(block.x[n][2 * r]) * exp2_fast(fminf(row.x - column, 0)),
                            __uint_as_float(block.x[n][2 * r + 1]) * exp2_fast(fminf(row.y - column, 0)));
      }
    const int row = 16 * i + lane_ / 16 * 8 + lane_ % 8, piece = 2 * j + lane_ / 8 % 2;
    matrix_store_transposed(shared_address(shared_.record) + swizzled(row, piece), out[0][0], out[0][1],
                            out[1][0], out[1][1]);
  }

  __device__ void send(const Job& job, int h) const {
    fence_async_shared();
    __syncwarp();
    if (lane_ != 0) return;
    const int64_t slot = job.id / params_.key_heads - params_.first_slot,
                  record = slot * params_.heads + job.key_head * group_ + h;
    bulk_store(params_.records + record * kRecordBytes, shared_address(shared_.record), kRecordBytes);
    bulk_store_commit();
  }

  const SolveParams& params_;
  Shared<kPanels>& shared_;
  int group_, lane_, t_, g_;
};

template <class T, int kPanels>
__global__ void __launch_bounds__(kWarpLanes) solve_kernel(const __grid_constant__ SolveParams params) {
  extern __shared__ __align__(1024) char memory[];
  Shared<kPanels>& shared = *reinterpret_cast<Shared<kPanels>*>(memory);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.loaded), 1);
    barrier_init_fence();
    prefetch_tensor_map(&params.k);
  }
  for (int i = threadIdx.x; i < kRecordG / 16; i += kWarpLanes)  // T's upper triangle stays so
    reinterpret_cast<uint4*>(shared.record)[i] = {};
  __syncwarp();
  Solve<T, kPanels>(params, shared).run();
}

template <class T, int kPanels>
const char* launch(const SolveParams& params, CUstream_st* stream) {
  const auto kernel = solve_kernel<T, kPanels>;
  constexpr int kBytes = sizeof(Shared<kPanels>);
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (prepared != cudaSuccess) return cudaGetErrorString(prepared);
  const int64_t blocks =
      std::min<int64_t>(params.end_job - params.first_job, int64_t{processor_count()} * kBlocksAProcessor);
  kernel<<<static_cast<unsigned>(blocks), kWarpLanes, kBytes, stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T>
const char* launch_for(const SolveParams& params, int panels, CUstream_st* stream) {
  return panels == 1 ? launch<T, 1>(params, stream) : launch<T, 2>(params, stream);
}

}  // namespace

const char* launch_solve(const PrismChunkCudaShape& shape, const PrismChunkInputs& in, int64_t first,
                         int64_t end, void* records, CUstream_st* stream) {
  SolveParams params{.schedule = schedule_of(shape),
                     .b = in.b,
                     .g = in.g,
                     .records = static_cast<char*>(records),
                     .first_slot = first,
                     .first_job = first * shape.key_heads,
                     .end_job = end * shape.key_heads,
                     .heads = static_cast<int>(shape.heads),
                     .key_heads = static_cast<int>(shape.key_heads)};
  if (first == end || shape.tokens == 0) return nullptr;
  const int panels = static_cast<int>(padded_width(shape.key_width) / 64);
  const TileMap keys{.dtype = shape.dtype,
                     .view = in.k,
                     .tokens = shape.tokens,
                     .heads = shape.key_heads,
                     .width = shape.key_width,
                     .panels = panels};
  if (const char* problem = make_tile_map(params.k, keys)) return problem;
  return shape.dtype == Scalar::kBFloat16 ? launch_for<__nv_bfloat16>(params, panels, stream)
                                          : launch_for<__half>(params, panels, stream);
}

}  // namespace prism::kernels::cuda
