#pragma once
// The scan: one block walks over the chunks of a piece of a sequence for one head and 64 value channels.
#include "kernels/cuda/tile.cuh"
#include "kernels/prism_chunk/cuda/lines.cuh"
#include "kernels/prism_chunk/cuda/segment_states.cuh"
#include "kernels/prism_chunk/cuda/solve.h"

namespace prism::kernels::cuda {

inline constexpr int kC = kChunkTokens, kPanelBytes = kC * kPanelRowBytes;
inline constexpr int kStoreWarps = 2, kFirstStoreWarp = 2;

/// What one launch computes.
enum class ScanPass {
  kTransitions,  ///< of every segment but a sequence's last: the state after it from zeros, and its
                 ///< transition matrix
  kOutputs       ///< outputs and states of every segment
};

/// The warpgroups of a block: one that copies, those that prepare, those that advance a state.
inline constexpr int kScanThreads = 4 * kWarpgroupThreads;
__host__ __device__ constexpr int prepare_groups(ScanPass pass) { return pass == ScanPass::kOutputs ? 2 : 1; }
__host__ __device__ constexpr int advance_groups(ScanPass pass) { return 3 - prepare_groups(pass); }

/// Registers a thread of each, 512 in all.
struct ScanRegisters {
  int copy, prepare, advance;
};
__host__ __device__ constexpr ScanRegisters scan_registers(ScanPass pass, int steps) {
  if (pass == ScanPass::kTransitions) return {32, 112, 184};
  return steps == 1 ? ScanRegisters{56, 112, 232} : ScanRegisters{48, 120, 224};
}

/// Steps L as a template argument: 1, 2, or any number above, known when it runs.
inline constexpr int kManySteps = 3;

struct ScanParams {
  CUtensorMap q, k, w;
  Lines q_lines, k_lines, w_lines;
  Segments segments;
  const char* records = nullptr;
  const float* initial_state = nullptr;
  void* o = nullptr;
  float* final_state = nullptr;
  void* chunk_states = nullptr;
  char* segment_states = nullptr;
  char* transitions = nullptr;
  int64_t jobs = 0;
  int steps = 1, heads = 1, key_heads = 1, key_width = 64, value_width = 64, slices = 1;
  float scale = 1;
};

/// Shared memory. A stage holds what is loaded for a chunk: q, k_1 .. k_L, w_1 .. w_L (slice), the record of
/// the solve. A work buffer holds what is prepared: -Y and P_1 .. P_L. The state's operands are swizzled
/// panels of 64 tokens.
struct ScanLayout {
  int steps, panels, stages, works;

  __host__ __device__ int keys() const { return panels * kPanelBytes; }
  __host__ __device__ int writes() const { return keys() + steps * panels * kPanelBytes; }
  __host__ __device__ int record() const { return writes() + steps * kPanelBytes; }
  __host__ __device__ int stage_bytes() const { return record() + (kRecordBytes + 1023) / 1024 * 1024; }
  __host__ __device__ int scores() const { return panels * kPanelBytes; }
  __host__ __device__ int work_bytes() const { return scores() + steps * kPanelBytes; }
  __host__ __device__ int work(int i) const { return stages * stage_bytes() + i * work_bytes(); }
  __host__ __device__ int output() const { return work(works); }
  __host__ __device__ int vectors(int i) const { return output() + kPanelBytes + i * kVectorBytes; }
  __host__ __device__ int barriers() const { return vectors(works); }
  __host__ __device__ int bytes() const { return barriers() + 160; }
  /// Whether a warp fetches ahead of the loads (scan_copy.cuh).
  __host__ __device__ bool fetches() const { return stages < 3; }
  /// Transition matrices that fit into the stages' memory, at most kMostFolds.
  __host__ __device__ int folds() const {
    return stages * stage_bytes() / (panels * panels * 64 * 64 * 4) > 1 ? 2 : 1;
  }

  /// gam, exp2(G_C - G): 64 floats each.
  static constexpr int kVectorBytes = 2 * kC * 4;
};

/// The barriers by name. full: the stage is loaded; empty: nobody reads it any more; ready: -Y, w_1 and the
/// vectors of a work buffer are made; scored: P is; used: the buffer is free again; out_full, out_empty: of
/// the output tile; fold_full, fold_empty: of transition matrices in the stages' memory; tail: raw loads of a
/// sequence's last chunk.
struct ScanBarriers {
  uint32_t base;
  static constexpr int kMaxStages = 3, kMaxWorks = 2;
  __device__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return base + 8 * (kMaxStages + stage); }
  __device__ uint32_t ready(int work) const { return base + 8 * (2 * kMaxStages + work); }
  __device__ uint32_t scored(int work) const { return base + 8 * (2 * kMaxStages + kMaxWorks + work); }
  __device__ uint32_t used(int work) const { return base + 8 * (2 * kMaxStages + 2 * kMaxWorks + work); }
  __device__ uint32_t at(int i) const { return base + 8 * (2 * kMaxStages + 3 * kMaxWorks + i); }
  __device__ uint32_t out_full() const { return at(0); }
  __device__ uint32_t out_empty() const { return at(1); }
  __device__ uint32_t tail() const { return at(2); }
  __device__ uint32_t fold_full(int fold) const { return at(3 + fold); }
  __device__ uint32_t fold_empty(int fold) const { return at(3 + kMostFolds + fold); }
};

/// A place in a ring of buffers, and the parity of the phase in which it is used.
struct Cursor {
  int index = 0, parity = 0;
  __device__ void next(int size) {
    if (++index == size) index = 0, parity ^= 1;
  }
};

struct ScanShared {
  ScanLayout layout;
  uint32_t base;
  ScanBarriers barriers;
  __device__ uint32_t stage(const Cursor& at) const { return base + at.index * layout.stage_bytes(); }
  __device__ uint32_t work(const Cursor& at) const { return base + layout.work(at.index); }
  __device__ uint32_t vectors(const Cursor& at) const { return base + layout.vectors(at.index); }
};

__device__ inline float shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline float2 shared_float2(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline uint32_t shared_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void shared_store(uint32_t address, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ inline uint4 shared_quad(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ inline void shared_zero_quad(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
/// Once all lanes of the warp are here.
__device__ inline void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

}  // namespace prism::kernels::cuda
