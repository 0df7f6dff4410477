#pragma once
// The warpgroup that advances the state. S^T (64 value channels x K) stays in its registers as accumulators;
// rounded pair by pair it is the A operand of the products that read it, so the chain from state to state
// never touches shared memory:
//   U^T = w_1^T T^T + S^T (-Y)^T,   S^T <- gam_C S^T + (dec U)^T k_1 + sum_{l>1} (dec w_l)^T k_l
//   O^T = gam (S^T q^T) + U^T P_1^T + sum_{l>1} w_l^T P_l^T
// Products are issued ahead: while the tensor cores read the state for the outputs, U is rounded; while they
// make the next chunk's U, the outputs are stored.
#include "kernels/prism_chunk/cuda/scan_copy.cuh"

namespace prism::kernels::cuda {

/// Which state a warpgroup advances: one with outputs, one without, or columns of the transition matrix,
/// which begin as the identity's and are written with nothing.
enum class Advance { kOutputs, kState, kMatrix };

template <class T, int kPanels, int kSteps, Advance kRole>
class ScanAdvance {
 public:
  __device__ ScanAdvance(const ScanParams& params, const ScanShared& shared)
      : params_(params),
        shared_(shared),
        row_(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        column_(threadIdx.x % 4 * 2) {}

  __device__ void run() {
    float S[kState];
    for_each_job<kPass>(params_, [&](const ScanJob& job, int64_t id) {
      start(S, job);
      if (job.chunks > 0) walk(S, job.chunks, saved_states(job));
      asm volatile("" : "+l"(id));  // found again, so that the job holds no registers meanwhile
      finish(S, job_of<kPass>(params_, id));
    });
  }

 private:
  static constexpr int kState = 32 * kPanels, kSlices = 4 * kPanels;  // accumulators; 16-wide slices of K
  static constexpr int kTileWords = 64 * 64 * kPanels / 2;            // of a rounded state
  static constexpr bool kOutputs = kRole == Advance::kOutputs, kWritten = kRole != Advance::kMatrix,
                        kLater = kWritten && kSteps > 1, kLaterUnderWay = kOutputs && kSteps == 2;
  static constexpr ScanPass kPass = kOutputs ? ScanPass::kOutputs : ScanPass::kTransitions;

  // Chunks. Outputs are stored while the tensor cores make the next chunk's U.

  __device__ void walk(float (&S)[kState], int left, uint32_t* saved) {
    float O[32];
    advance<true>(S, O, saved);
    while (--left > 0) {
      if (saved) saved += saved_stride();
      advance<false>(S, O, saved);
    }
    if constexpr (kOutputs) put_output(O);
  }

  /// The state after the chunk, and its outputs.
  template <bool kFirst>
  __device__ void advance(float (&S)[kState], float (&O)[32], uint32_t* saved) {
    barrier_wait(shared_.barriers.full(stage_.index), stage_.parity);
    barrier_wait(shared_.barriers.ready(work_.index), work_.parity);
    const uint32_t stage = shared_.stage(stage_), work = shared_.work(work_),
                   vectors = shared_.vectors(work_);
    const uint32_t keys = stage + shared_.layout.keys(), writes = stage + shared_.layout.writes();

    uint32_t state[kSlices][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) operand_of<T>(state[s], S, s);
    float U[32];
    wgmma_fence();
    if constexpr (kWritten) {
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Wgmma<64>::ss<T, Major::kRows>(U, row_major(writes + 2048 * s, kPanelBytes),
                                       contraction_major(stage + shared_.layout.record() + 32 * s), s > 0);
    }
    read_state(U, state, work, kWritten);
    wgmma_commit();
    if constexpr (kOutputs) {
      if constexpr (!kFirst) put_output(O);
      wgmma_fence();
      read_state(O, state, stage, false);
      wgmma_commit();
      if (saved) save_state(state, saved);
    }
    const float gam = shared_float(vectors + 4 * (kC - 1));
#pragma unroll
    for (int i = 0; i < kState; ++i) S[i] *= gam;
    [[maybe_unused]] uint32_t later[4][4];
    if constexpr (kLater) add_later_writes(S, later, stage, vectors);

    wgmma_wait<kOutputs ? 1 + kLaterUnderWay : 0>();
    pin(U);
    uint32_t written[4][4], values[4][4];
    round_values(written, values, U, vectors + 4 * kC);
    wgmma_fence();
    write_state(S, written, keys);
    wgmma_commit();
    if constexpr (kOutputs) {
      wgmma_wait<1>();
      pin(O);
      scale_columns(O, vectors);
      barrier_wait(shared_.barriers.scored(work_.index), work_.parity);
      wgmma_fence();
      add_values(O, values, work + shared_.layout.scores(), writes);
      wgmma_commit();
    }
    wgmma_wait<0>();
    pin(S);
    warp_arrive(shared_.barriers.empty(stage_.index));
    warp_arrive(shared_.barriers.used(work_.index));
    if constexpr (kOutputs) pin(O);
    stage_.next(shared_.layout.stages);
    work_.next(shared_.layout.works);
  }

  /// O^T += U^T P_1^T + sum_{l>1} w_l^T P_l^T.
  __device__ void add_values(float (&O)[32], const uint32_t (&values)[4][4], uint32_t scores,
                             uint32_t writes) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) Wgmma<64>::rs<T>(O, values[s], contraction_major(scores + 32 * s), 1);
    for (int l = 1; kSteps > 1 && l < (kSteps == 2 ? 2 : params_.steps); ++l) {
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Wgmma<64>::ss<T, Major::kRows>(O, row_major(writes + l * kPanelBytes + 2048 * s, kPanelBytes),
                                       contraction_major(scores + l * kPanelBytes + 32 * s), 1);
    }
  }

  /// d (+)= S^T rows^T, rows [64 tokens][K].
  __device__ static void read_state(float (&d)[32], const uint32_t (&state)[kSlices][4], uint32_t rows,
                                    bool add) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s)
      Wgmma<64>::rs<T>(d, state[s], contraction_major(rows + s / 4 * kPanelBytes + s % 4 * 32), add || s > 0);
  }

  /// S^T += values^T keys, keys [64 tokens][K].
  __device__ static void write_state(float (&S)[kState], const uint32_t (&values)[4][4], uint32_t keys) {
#pragma unroll
    for (int s = 0; s < 4; ++s)
      Wgmma<64 * kPanels>::template rs<T, Major::kRows>(S, values[s], row_major(keys + 2048 * s, kPanelBytes),
                                                        1);
  }

  /// S^T += sum_{l>1} (dec w_l)^T k_l, `values` dec w_l as an operand; at L = 2 the product stays under way.
  __device__ void add_later_writes(float (&S)[kState], uint32_t (&values)[4][4], uint32_t stage,
                                   uint32_t vectors) const {
    for (int l = 1; l < (kSteps == 2 ? 2 : params_.steps); ++l) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        load_operand_transposed(values[s], stage + shared_.layout.writes() + l * kPanelBytes, s);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = unpack<T>(values[s][i]),
                       dec = shared_float2(vectors + 4 * (kC + 16 * s + i / 2 * 8 + column_));
          values[s][i] = pack<T>(x.x * dec.x, x.y * dec.y);
        }
      }
      wgmma_fence();
      write_state(S, values, stage + shared_.layout.keys() + l * kPanels * kPanelBytes);
      wgmma_commit();
      if constexpr (!kLaterUnderWay) {
        wgmma_wait<0>();
        pin(S);
      }
    }
  }

  /// U as an operand, and dec U: what the state takes up.
  __device__ void round_values(uint32_t (&written)[4][4], uint32_t (&values)[4][4], const float (&U)[32],
                               uint32_t dec) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = shared_float2(dec + 4 * (8 * n + column_));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* u = U + 4 * n + 2 * r;
        written[n / 2][n % 2 * 2 + r] = pack<T>(u[0] * x.x, u[1] * x.y);
        if constexpr (kOutputs) values[n / 2][n % 2 * 2 + r] = pack<T>(u[0], u[1]);
      }
    }
  }

  /// Columns (tokens) times a vector in shared memory.
  __device__ void scale_columns(float (&d)[32], uint32_t vector) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = shared_float2(vector + 4 * (8 * n + column_));
#pragma unroll
      for (int r = 0; r < 2; ++r) d[4 * n + 2 * r] *= x.x, d[4 * n + 2 * r + 1] *= x.y;
    }
  }

  __device__ void put_output(float (&O)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) O[i] *= params_.scale;
    barrier_wait(shared_.barriers.out_empty(), output_parity_ ^ 1);
    output_parity_ ^= 1;
    store_tile_transposed<T>(shared_.base + shared_.layout.output(), O);
    warp_arrive(shared_.barriers.out_full());
  }

  __device__ uint32_t* saved_states(const ScanJob& job) const {
    if (!kOutputs || !params_.chunk_states) return nullptr;
    const int64_t tile = (job.first_slot * params_.heads + job.head) * params_.slices + job.slice;
    return static_cast<uint32_t*>(params_.chunk_states) + tile * kTileWords + threadIdx.x / 32 % 4 * 64 +
           threadIdx.x % 32;
  }
  __device__ int64_t saved_stride() const { return int64_t{kTileWords} * params_.heads * params_.slices; }

  /// Each store of a warp is one 8x8 block.
  __device__ static void save_state(const uint32_t (&state)[kSlices][4], uint32_t* to) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(2 * s + i / 2) * 256 + i % 2 * 32] = state[s][i];
  }

  // Before and after.

  /// f(element, v, k) of the thread's accumulators; v counts from the slice's first channel.
  template <class F>
  __device__ void each_element(F f) const {
#pragma unroll
    for (int i = 0; i < kState; ++i) f(i, row_ + 8 * (i / 2 % 2), i / 4 * 8 + column_ + i % 2);
  }

  __device__ void start(float (&S)[kState], const ScanJob& job) {
    if constexpr (kRole == Advance::kMatrix) {
      each_element([&](int i, int v, int k) { S[i] = k == 64 * job.slice + v; });
    } else if (job.segment == 0) {
      initial_state(S, job);
    } else if constexpr (kOutputs) {
      fold(S, job);
    } else {
      each_element([&](int i, int, int) { S[i] = 0; });
    }
  }

  __device__ int64_t state_at(const ScanJob& job) const {
    return (job.sequence * params_.heads + job.head) * params_.key_width * params_.value_width;
  }

  __device__ void initial_state(float (&S)[kState], const ScanJob& job) const {
    const float* from = params_.initial_state;
    const int64_t base = state_at(job);
    each_element([&](int i, int v, int k) {
      const int channel = 64 * job.slice + v;
      const bool inside = from && k < params_.key_width && channel < params_.value_width;
      S[i] = inside ? __ldg(from + base + int64_t{k} * params_.value_width + channel) : 0;
    });
  }

  __device__ void finish(const float (&S)[kState], const ScanJob& job) const {
    if constexpr (kRole == Advance::kMatrix) {
      save_transition<T>(params_.transitions + segment_slice(job, job.segment), S);
    } else if constexpr (kRole == Advance::kState) {
      save_accumulators(params_.segment_states + segment_slice(job, job.segment), S);
    } else if (params_.final_state && job.last()) {
      const int64_t base = state_at(job);
      each_element([&](int i, int v, int k) {
        const int channel = 64 * job.slice + v;
        if (k < params_.key_width && channel < params_.value_width)
          params_.final_state[base + int64_t{k} * params_.value_width + channel] = S[i];
      });
    }
  }

  // Segments.

  __device__ int64_t segment_slice(const ScanJob& job, int segment) const {
    return SegmentLayout{params_.heads, params_.slices}.at(job.store + segment, job.head, job.slice);
  }

  /// The state before the segment: S_1 = state after the first, S <- M S + R for those between.
  __device__ void fold(float (&S)[kState], const ScanJob& job) {
    load_accumulators(S, params_.segment_states + segment_slice(job, 0));
    for (int segment = 1; segment < job.segment; ++segment) {
      float next[kState];
      load_accumulators(next, params_.segment_states + segment_slice(job, segment));
      barrier_wait(shared_.barriers.fold_full(fold_.index), fold_.parity);
      fold_forward<T>(next, S, shared_.base + fold_.index * kPanels * kSliceBytes<kPanels>);
      warp_arrive(shared_.barriers.fold_empty(fold_.index));
      fold_.next(shared_.layout.folds());
#pragma unroll
      for (int i = 0; i < kState; ++i) S[i] = next[i];
    }
  }

  const ScanParams& params_;
  const ScanShared& shared_;
  int row_, column_;
  Cursor stage_, work_, fold_;
  int output_parity_ = 0;
};

}  // namespace prism::kernels::cuda
