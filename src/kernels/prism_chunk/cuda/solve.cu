// T of every chunk. A block takes one chunk of one key head: E E^T once by wgmma, then for each value head
// that reads this key head the inverse of I + A, A = strict(diag(b) E E^T), before any decay (with b |e|^2 <=
// 2 its entries stay of the size of b), in 16x16 blocks:
//   D_i = inv(I + A_ii)                         fp32 substitution, one column a lane
//   T_ij = -D_i sum_{j <= m < i} A_im T_mj      tf32 tensor cores, one block column j a warp, from the
//   diagonal down
// The blocks are kept transposed, so that the accumulator of one product is the A operand of the next;
// columns of a contraction may come in any order as long as both operands agree, here 2 t and 2 t + 1 for the
// hardware's t and t + 4.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {
namespace {

constexpr int kC = kChunkTokens, kBlock = 16, kBlocks = kC / kBlock;
constexpr int kPitch = kC + 8;      // of A in floats: rows 8 banks apart
constexpr int kDiagonalPitch = 20;  // of D
constexpr float kLog2e = 1.44269504088896340736f, kLeastLogGate = -750;

struct SolveParams {
  CUtensorMap k;
  Schedule schedule;
  View b, g;
  char* records;
  int64_t jobs;
  int heads, key_heads;
};

struct Shared {
  union {
    char keys[2 * kC * kPanelRowBytes];  // E until its Gram matrix is in registers
    float A[kC * kPitch];
  };
  alignas(1024) char record[kRecordBytes];
  float D[kBlocks][kBlock * kDiagonalPitch];
  alignas(8) uint64_t loaded;
  __device__ float* G() { return reinterpret_cast<float*>(record + kRecordG); }
  __device__ float* b() { return reinterpret_cast<float*>(record + kRecordB); }
};

__device__ float gate_at(const View& view, int64_t token, int head) {
  return __ldg(static_cast<const float*>(view.data) + token * view.token_stride + head * view.head_stride);
}

/// One warp: G and b of the chunk; each lane takes two neighbouring tokens.
__device__ void load_gates(Shared& shared, const SolveParams& params, const Piece& chunk, int head) {
  const int lane = threadIdx.x;
  float g[2] = {0, 0}, b[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i >= chunk.tokens) continue;
    g[i] = fmaxf(gate_at(params.g, chunk.first_token + 2 * lane + i, head), kLeastLogGate) * kLog2e;
    b[i] = gate_at(params.b, chunk.first_token + 2 * lane + i, head);
  }
  float sum = g[0] + g[1];
  for (int offset = 1; offset < kWarpLanes; offset *= 2) {
    const float before = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += before;
  }
  float start = __shfl_up_sync(~0u, sum, 1);
  if (lane == 0) start = 0;
  shared.G()[2 * lane] = start + g[0];
  shared.G()[2 * lane + 1] = start + g[0] + g[1];
  shared.b()[2 * lane] = b[0];
  shared.b()[2 * lane + 1] = b[1];
}

/// A from the Gram matrix; rows beyond the sequence's end are 0, whatever the copy engine found there.
__device__ void store_system(Shared& shared, const float (&gram)[32], int tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = 16 * warp + lane / 4 + 8 * r;
    const float b = i < tokens ? shared.b()[i] : 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + lane % 4 * 2;
      if (j / kBlock > warp) continue;
      const float x = i > j && i < tokens ? b * gram[4 * n + 2 * r] : 0;
      const float y = i > j + 1 && i < tokens ? b * gram[4 * n + 2 * r + 1] : 0;
      *reinterpret_cast<float2*>(shared.A + i * kPitch + j) = {x, y};
    }
  }
}

/// The warp's diagonal block: lane j solves for column j.
__device__ void invert_diagonal(Shared& shared) {
  const int j = threadIdx.x % kBlock, block = threadIdx.x / 32;
  const float* A = shared.A + block * kBlock * (kPitch + 1);
  float x[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float row[kBlock];
#pragma unroll
    for (int m = 0; m < i; m += 4)
      *reinterpret_cast<float4*>(row + m) = *reinterpret_cast<const float4*>(A + i * kPitch + m);
    float sum = i == j;
#pragma unroll
    for (int m = 0; m < i; ++m) sum -= row[m] * x[m];
    x[i] = sum;
  }
  if (threadIdx.x % 32 >= kBlock) return;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) shared.D[block][i * kDiagonalPitch + j] = x[i];
}

__device__ uint32_t tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

/// A 16x16 block, transposed, as accumulators: x[n][2 r + c] = block[8 n + 2 t + c][g + 8 r].
struct Block {
  float x[2][4] = {};
};

/// sum += W A^T, A a 16x16 block in shared memory.
__device__ void add_product(Block& sum, const Block& W, const float* A, int pitch) {
  const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const uint32_t a[4] = {tf32(W.x[s][0]), tf32(W.x[s][2]), tf32(W.x[s][1]), tf32(W.x[s][3])};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 b = *reinterpret_cast<const float2*>(A + (8 * n + g) * pitch + 8 * s + 2 * t);
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum.x[n][0]), "+f"(sum.x[n][1]), "+f"(sum.x[n][2]), "+f"(sum.x[n][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(tf32(b.x)), "r"(tf32(b.y)));
    }
  }
}

/// Gam times the block, into T's block (i, j).
template <class T>
__device__ void store_block(Shared& shared, const Block& block, int i, int j) {
  const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
  const float* G = shared.G();
  uint32_t out[2][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 row = *reinterpret_cast<const float2*>(G + 16 * i + 8 * n + 2 * t);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float column = G[16 * j + g + 8 * r];
      out[n][r] = pack<T>(exp2_fast(fminf(row.x - column, 0)) * block.x[n][2 * r],
                          exp2_fast(fminf(row.y - column, 0)) * block.x[n][2 * r + 1]);
    }
  }
  const int row = 16 * i + lane / 16 * 8 + lane % 8, piece = 2 * j + lane / 8 % 2;
  matrix_store_transposed(shared_address(shared.record) + swizzled(row, piece), out[0][0], out[0][1],
                          out[1][0], out[1][1]);
}

/// The warp's block column.
template <class T>
__device__ void solve_column(Shared& shared) {
  const int j = threadIdx.x / 32, t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
  Block column[kBlocks];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float* rows = shared.D[j] + (8 * n + 2 * t) * kDiagonalPitch + g;
    column[0].x[n][0] = rows[0], column[0].x[n][1] = rows[kDiagonalPitch];
    column[0].x[n][2] = rows[8], column[0].x[n][3] = rows[kDiagonalPitch + 8];
  }
  store_block<T>(shared, column[0], j, j);
#pragma unroll
  for (int below = 1; below < kBlocks; ++below) {
    const int i = j + below;
    if (i >= kBlocks) break;
    Block sum;
#pragma unroll
    for (int m = 0; m < below; ++m)
      add_product(sum, column[m], shared.A + 16 * i * kPitch + 16 * (j + m), kPitch);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) sum.x[n][c] = -sum.x[n][c];
    add_product(column[below], sum, shared.D[i], kDiagonalPitch);
    store_block<T>(shared, column[below], i, j);
  }
}

template <class T, int kPanels>
__device__ void gram_matrix(float (&gram)[32], uint32_t keys) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 4 * kPanels; ++s) {
    const uint64_t e = contraction_major(keys + s / 4 * kC * kPanelRowBytes + s % 4 * 32);
    Wgmma<64>::ss<T>(gram, e, e, s > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

template <class T, int kPanels>
__global__ void __launch_bounds__(kWarpgroupThreads, 5)
    solve_kernel(const __grid_constant__ SolveParams params) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const uint32_t loaded = shared_address(&shared.loaded);
  if (threadIdx.x == 0) {
    barrier_init(loaded, 1);
    barrier_init_fence();
    prefetch_tensor_map(&params.k);
  }
  for (int i = threadIdx.x; i < kRecordG / 16; i += kWarpgroupThreads)
    reinterpret_cast<uint4*>(shared.record)[i] = {};
  __syncthreads();
  int parity = 0;
  const int group = params.heads / params.key_heads;
  for (int64_t job = blockIdx.x; job < params.jobs; job += gridDim.x) {
    const int64_t slot = job / params.key_heads;
    const int key_head = static_cast<int>(job % params.key_heads);
    const Piece chunk = params.schedule.locate(slot, kC);
    if (chunk.tokens == 0) continue;
    if (threadIdx.x == 0) {
      barrier_arrive_expect(loaded, kPanels * kC * kPanelRowBytes);
      tensor_load(shared_address(shared.keys), &params.k, 0, static_cast<int>(chunk.first_token), 0, key_head,
                  0, loaded);
    }
    if (threadIdx.x < 32) load_gates(shared, params, chunk, key_head * group);
    barrier_wait(loaded, parity);
    parity ^= 1;
    float gram[32];
    gram_matrix<T, kPanels>(gram, shared_address(shared.keys));
    for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
      __syncthreads();  // the gates are there, the keys (or A) read
      store_system(shared, gram, chunk.tokens);
      __syncwarp();
      invert_diagonal(shared);  // each warp wrote the rows that it reads
      __syncthreads();
      solve_column<T>(shared);
      fence_async_shared();
      __syncthreads();
      if (threadIdx.x == 0) {
        bulk_store(params.records + (slot * params.heads + head) * kRecordBytes,
                   shared_address(shared.record), kRecordBytes);
        bulk_store_commit();
        bulk_store_wait_read<0>();
      }
      if (threadIdx.x < 32 && head + 1 < (key_head + 1) * group) {
        __syncwarp();
        load_gates(shared, params, chunk, head + 1);
      }
    }
    fence_async_shared();  // A was here; the copy engine writes the next keys
    __syncthreads();
  }
  if (threadIdx.x == 0) bulk_store_wait<0>();
}

template <class T, int kPanels>
const char* launch(const SolveParams& params, CUstream_st* stream) {
  const auto kernel = solve_kernel<T, kPanels>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (prepared != cudaSuccess) return cudaGetErrorString(prepared);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(params.jobs, 0x7fffffff));
  kernel<<<blocks, kWarpgroupThreads, sizeof(Shared), stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* launch_solve(const PrismChunkCudaShape& shape, const PrismChunkInputs& in, void* records,
                         CUstream_st* stream) {
  SolveParams params{.schedule = schedule_of(shape),
                     .b = in.b,
                     .g = in.g,
                     .records = static_cast<char*>(records),
                     .heads = static_cast<int>(shape.heads),
                     .key_heads = static_cast<int>(shape.key_heads)};
  params.jobs = params.schedule.slots(kChunkTokens) * shape.key_heads;
  if (params.jobs == 0 || shape.tokens == 0) return nullptr;
  const int panels = static_cast<int>(padded_width(shape.key_width) / 64);
  const TileMap keys{.dtype = shape.dtype,
                     .view = in.k,
                     .tokens = shape.tokens,
                     .heads = shape.key_heads,
                     .width = shape.key_width,
                     .panels = panels};
  if (const char* problem = make_tile_map(params.k, keys)) return problem;
  const bool bf16 = shape.dtype == Scalar::kBFloat16;
  if (panels == 1) return bf16 ? launch<__nv_bfloat16, 1>(params, stream) : launch<__half, 1>(params, stream);
  return bf16 ? launch<__nv_bfloat16, 2>(params, stream) : launch<__half, 2>(params, stream);
}

}  // namespace prism::kernels::cuda
