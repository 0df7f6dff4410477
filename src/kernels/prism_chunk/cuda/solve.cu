// T of every chunk. A warp takes one chunk of one key head: E E^T once, then for each value head that reads
// this key head the inverse of I + A, A = strict(diag(b) E E^T), before any decay (with b |e|^2 <= 2 its
// entries stay of the size of b), in 16x16 blocks:
//   D_i = inv(I + A_ii)                         fp32 substitution, one column a lane
//   T_ij = -D_i sum_{j <= m < i} A_im T_mj      tf32 tensor cores, from the diagonal down
// The blocks are kept transposed, so that the accumulator of one product is the A operand of the next; the
// blocks A_im are B operands as the Gram matrix leaves them. Columns of a contraction may come in any order
// as long as both operands agree, here 2 t and 2 t + 1 for the hardware's t and t + 4. Warps know nothing of
// each other. A chunk is some 2,100 instructions in a row, so what counts is how many warps a processor
// holds, and so how little memory each needs: 64 columns of the keys at a time. The next chunk's first ones
// and its gates are on their way while this one is solved.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kC = kChunkTokens, kBlock = 16, kBlocks = kC / kBlock, kTriangle = kBlocks * (kBlocks + 1) / 2;
constexpr int kBlocksAProcessor = 10;  // what shared memory holds, at 168 registers a thread
constexpr float kLog2e = 1.44269504088896340736f, kLeastLogGate = -750;

struct SolveParams {
  CUtensorMap k;
  Schedule schedule;
  View b, g;
  char* records;
  int64_t first_slot, first_job, end_job;
  int heads, key_heads;
};

struct Shared {
  alignas(1024) char keys[kC * kPanelRowBytes];
  alignas(256) char record[kRecordBytes];
  alignas(16) float diagonal[kBlocks][kBlock * kBlock];  // A_ii, then D_i
  alignas(8) uint64_t loaded;
};

/// A chunk of one key head.
struct Job {
  int64_t id, slot;
  int first_token, tokens, key_head;
};

/// Place of block (i, j), j <= i, and of those below the diagonal alone.
__device__ constexpr int triangle(int i, int j) { return i * (i + 1) / 2 + j; }
__device__ constexpr int below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }
/// Place of an element in a block: rows 0 .. 3 of 8 columns lie in different banks.
__device__ constexpr int place(int row, int column) { return row * kBlock + (column ^ (row & 2) << 2); }

/// Log-gates (base 2) and strengths of the lane's two tokens.
struct Gates {
  float g[2], b[2];
};

__device__ const float* gate_address(const View& view, int64_t token, int head) {
  return static_cast<const float*>(view.data) + token * view.token_stride + head * view.head_stride;
}

/// Rounded to tf32, for products alone: they leave the low 13 bits out, whatever is there.
__device__ uint32_t tf32(float x) { return __float_as_uint(x) + 0x1000; }
/// The same with those bits 0.
__device__ uint32_t tf32_value(float x) { return tf32(x) & ~0x1fffu; }

/// A 16x16 block of T, transposed and rounded to tf32: x[n][2 r + c] = block[8 n + 2 t + c][g + 8 r].
struct Block {
  uint32_t x[2][4];
};
/// A block of A as the Gram matrix leaves it, rounded to tf32: x[n][2 r + c] = block[g + 8 r][8 n + 2 t + c].
struct System {
  uint32_t x[2][4];
};

__device__ void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// sum += W A^T.
__device__ void add_product(float (&sum)[2][4], const Block& W, const System& A) {
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int n = 0; n < 2; ++n) add_product(sum[n], W.x[s], A.x[s][2 * n], A.x[s][2 * n + 1]);
}
/// The same with the block in shared memory.
__device__ void add_product(float (&sum)[2][4], const Block& W, const float* A) {
  const int t = threadIdx.x % 4, g = threadIdx.x % kWarpLanes / 4;
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint2 b = *reinterpret_cast<const uint2*>(A + place(8 * n + g, 8 * s + 2 * t));
      add_product(sum[n], W.x[s], b.x, b.y);
    }
}

template <class T>
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
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

template <class T, int kPanels, bool kGrouped>
class Solve {
 public:
  __device__ Solve(const SolveParams& params, Shared& shared)
      : params_(params),
        shared_(shared),
        group_(kGrouped ? params.heads / params.key_heads : 1),
        lane_(threadIdx.x),
        t_(lane_ % 4),
        g_(lane_ / 4) {}

  __device__ void run() {
    Job job = find(params_.first_job + blockIdx.x);
    if (job.id >= params_.end_job) return;
    load_keys(job, 0);
    Gates gates = fetch(job, 0);
    while (job.id < params_.end_job) {
      float gram[kTriangle][2][4] = {};
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        barrier_wait(shared_address(&shared_.loaded), parity_);
        parity_ ^= 1;
        add_gram(gram);
        __syncwarp();
        if (panel + 1 < kPanels) load_keys(job, panel + 1);
      }
      const Job next = find(job.id + gridDim.x);
      if (next.id < params_.end_job) load_keys(next, 0);
      for (int h = 0; h < group_; ++h) {
        const Gates now = gates;
        if (kGrouped && h + 1 < group_)
          gates = fetch(job, h + 1);
        else if (next.id < params_.end_job)
          gates = fetch(next, 0);
        store_gates(now, job.tokens);
        System A[kTriangle - kBlocks];
        make_system(A, gram, job.tokens);
        invert_diagonal(0);
        invert_diagonal(2);
        __syncwarp();
        solve_column<0>(A);
        solve_column<1>(A);
        solve_column<2>(A);
        solve_column<3>(A);
        send(job, h);
      }
      job = next;
    }
    bulk_store_wait<0>();
  }

 private:
  /// The first job from `id` on whose slot has a chunk.
  __device__ Job find(int64_t id) const {
    for (; id < params_.end_job; id += gridDim.x) {
      const int64_t slot = id / params_.key_heads;
      const Piece chunk = params_.schedule.locate(slot, kC);
      if (chunk.tokens > 0)
        return {id, slot, static_cast<int>(chunk.first_token), chunk.tokens,
                static_cast<int>(id - slot * params_.key_heads)};
    }
    return {id, 0, 0, 0, 0};
  }

  /// 64 columns of the chunk's keys.
  __device__ void load_keys(const Job& job, int panel) const {
    if (lane_ != 0) return;
    const uint32_t loaded = shared_address(&shared_.loaded);
    barrier_arrive_expect(loaded, sizeof shared_.keys);
    tensor_load(shared_address(shared_.keys), &params_.k, 0, job.first_token, panel, job.key_head, 0, loaded);
  }

  __device__ Gates fetch(const Job& job, int h) const {
    Gates gates{};
    for (int i = 0; i < 2; ++i) {
      if (2 * lane_ + i >= job.tokens) continue;
      gates.g[i] = __ldg(gate_address(params_.g, job.first_token + 2 * lane_ + i, job.key_head * group_ + h));
      gates.b[i] = __ldg(gate_address(params_.b, job.first_token + 2 * lane_ + i, job.key_head * group_ + h));
    }
    return gates;
  }

  /// The share of the loaded columns in the blocks of E E^T on and below the diagonal. 16 of them are A
  /// operand of their rows and B operand of their columns.
  __device__ void add_gram(float (&gram)[kTriangle][2][4]) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t e[kBlocks][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        matrix_load(e[i], shared_address(shared_.keys) + swizzled(16 * i + lane_ % 16, 2 * s + lane_ / 16));
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j <= i; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n) multiply_add<T>(gram[triangle(i, j)][n], e[i], e[j][n], e[j][2 + n]);
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

  /// A from the Gram matrix, its diagonal blocks in shared memory; rows beyond the sequence's end are 0,
  /// whatever the copy engine found there.
  __device__ void make_system(System (&A)[kTriangle - kBlocks], const float (&gram)[kTriangle][2][4],
                              int tokens) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * i + g_ + 8 * r;
        const bool inside = row < tokens;
        const float strength = inside ? b()[row] : 0;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int j = 0; j < i; ++j)
#pragma unroll
            for (int c = 2 * r; c < 2 * r + 2; ++c)
              A[below_diagonal(i, j)].x[n][c] = inside ? tf32(strength * gram[triangle(i, j)][n][c]) : 0;
          const float* x = gram[triangle(i, i)][n] + 2 * r;
          *reinterpret_cast<float2*>(shared_.diagonal[i] + place(g_ + 8 * r, 8 * n + 2 * t_)) =
              inside ? float2{strength * x[0], strength * x[1]} : float2{0, 0};
        }
      }
    __syncwarp();
  }

  /// Diagonal blocks `first` and `first` + 1: half a warp each, a lane a column; only what lies below the
  /// diagonal is read.
  __device__ void invert_diagonal(int first) const {
    const int j = lane_ % kBlock;
    float* A = shared_.diagonal[first + lane_ / kBlock];
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
    for (int i = 0; i < kBlock; ++i) A[place(i, j)] = __uint_as_float(tf32_value(x[i]));
  }

  template <int j>
  __device__ void solve_column(const System (&A)[kTriangle - kBlocks]) const {
    Block column[kBlocks - j];
    const float* D = shared_.diagonal[j];
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
      for (int m = 0; m < below; ++m) add_product(sum, column[m], A[below_diagonal(j + below, j + m)]);
      Block negated;
#pragma unroll
      for (int c = 0; c < 8; ++c) negated.x[c / 4][c % 4] = tf32(-sum[c / 4][c % 4]);
      add_product(out, negated, shared_.diagonal[j + below]);
#pragma unroll
      for (int c = 0; c < 8; ++c) column[below].x[c / 4][c % 4] = tf32_value(out[c / 4][c % 4]);
      store_block(column[below], j + below, j);
    }
  }

  /// Gam times the block, into T's block (i, j). The upper triangle of a diagonal one is 0 already, and there
  /// the exponent would be positive.
  __device__ void store_block(const Block& block, int i, int j) const {
    uint32_t out[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 row = *reinterpret_cast<const float2*>(G() + 16 * i + 8 * n + 2 * t_);
        const float column = G()[16 * j + g_ + 8 * r];
        float2 exponent = {row.x - column, row.y - column};
        if (i == j) exponent = {fminf(exponent.x, 0), fminf(exponent.y, 0)};
        out[n][r] = pack<T>(__uint_as_float(block.x[n][2 * r]) * exp2_fast(exponent.x),
                            __uint_as_float(block.x[n][2 * r + 1]) * exp2_fast(exponent.y));
      }
    const int row = 16 * i + lane_ / 16 * 8 + lane_ % 8, piece = 2 * j + lane_ / 8 % 2;
    matrix_store_transposed(shared_address(shared_.record) + swizzled(row, piece), out[0][0], out[0][1],
                            out[1][0], out[1][1]);
  }

  __device__ void send(const Job& job, int h) const {
    fence_async_shared();
    __syncwarp();
    if (lane_ != 0) return;
    const int64_t record = (job.slot - params_.first_slot) * params_.heads + job.key_head * group_ + h;
    bulk_store(params_.records + record * kRecordBytes, shared_address(shared_.record), kRecordBytes);
    bulk_store_commit();
  }

  const SolveParams& params_;
  Shared& shared_;
  int group_, lane_, t_, g_;
  int parity_ = 0;
};

template <class T, int kPanels, bool kGrouped>
__global__ void __launch_bounds__(kWarpLanes, kBlocksAProcessor)
    solve_kernel(const __grid_constant__ SolveParams params) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.loaded), 1);
    barrier_init_fence();
    prefetch_tensor_map(&params.k);
  }
  for (int i = threadIdx.x; i < kRecordG / 16; i += kWarpLanes)  // T's upper triangle stays so
    reinterpret_cast<uint4*>(shared.record)[i] = {};
  __syncwarp();
  Solve<T, kPanels, kGrouped>(params, shared).run();
}

template <class T, int kPanels, bool kGrouped>
const char* launch(const SolveParams& params, CUstream_st* stream) {
  const int64_t blocks =
      std::min<int64_t>(params.end_job - params.first_job, int64_t{processor_count()} * kBlocksAProcessor);
  solve_kernel<T, kPanels, kGrouped>
      <<<static_cast<unsigned>(blocks), kWarpLanes, sizeof(Shared), stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T, int kPanels>
const char* launch_for(const SolveParams& params, CUstream_st* stream) {
  return params.heads > params.key_heads ? launch<T, kPanels, true>(params, stream)
                                         : launch<T, kPanels, false>(params, stream);
}

template <class T>
const char* launch_for(const SolveParams& params, int panels, CUstream_st* stream) {
  return panels == 1 ? launch_for<T, 1>(params, stream) : launch_for<T, 2>(params, stream);
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
                     .width = shape.key_width};
  if (const char* problem = make_tile_map(params.k, keys)) return problem;
  return shape.dtype == Scalar::kBFloat16 ? launch_for<__nv_bfloat16>(params, panels, stream)
                                          : launch_for<__half>(params, panels, stream);
}

}  // namespace prism::kernels::cuda
