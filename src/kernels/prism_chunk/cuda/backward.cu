// The backward as windows of chunks: solve, states in reverse, then everything else in parallel. Windows
// bound the workspace; the last one comes first, and dS crosses from one to the next in fp32, so that they
// change no bit. Rows that the forward cut into segments are cut here as well: what dS each segment begins
// with is found before, from zeros after it and the transition matrices that the forward kept.
#include <algorithm>

#include "kernels/cuda/tensor_map.h"
#include "kernels/prism_chunk/cuda/backward.h"

namespace prism::kernels::cuda {
namespace {

/// Bytes that a window's records and state gradients may take: a fraction of what a long call keeps anyway,
/// and thousands of chunks to fill the card.
constexpr int64_t kWindowBytes = int64_t{336} << 20;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t carry_bytes(const PrismChunkCudaShape& shape) { return aligned(2 * state_bytes(shape)); }

int64_t window_slots(const PrismChunkCudaShape& shape) {
  const int64_t slots = schedule_of(shape).slots(kChunk),
                a_slot = state_bytes(shape) + record_bytes(shape, 1);
  const int64_t windows = (slots * a_slot + kWindowBytes - 1) / kWindowBytes;
  return std::max<int64_t>(1, (slots + windows - 1) / std::max<int64_t>(windows, 1));
}

struct Workspace {
  uint8_t *records, *d_states;
  /// Two, in turns: where a window begins in one sequence and ends in another, one block writes its start's
  /// while another reads its end's.
  char* carries[2];
  char* segment_states;
  int64_t bytes;
  Workspace(const PrismChunkCudaShape& shape, void* memory) {
    const int64_t slots = window_slots(shape), all_records = aligned(record_bytes(shape, slots)),
                  all_states = aligned(slots * state_bytes(shape));
    records = static_cast<uint8_t*>(memory);
    d_states = records + all_records;
    for (int i = 0; i < 2; ++i)
      carries[i] = reinterpret_cast<char*>(d_states + all_states + i * carry_bytes(shape));
    segment_states = static_cast<char*>(memory) + all_records + all_states + 2 * carry_bytes(shape);
    const SegmentLayout segments{shape.heads, static_cast<int>(value_slices(shape.value_width))};
    bytes = all_records + all_states + 2 * carry_bytes(shape) + segments.bytes(segments_of(shape).slots());
  }
};

const char* make_maps(BackwardParams& p, const PrismChunkCudaShape& shape, const PrismChunkInputs& in,
                      const View& d_o, void* dw) {
  const int64_t L = shape.steps, Hv = shape.heads, V = shape.value_width;
  const View y{dw, L * Hv * V, Hv * V, V};
  const auto map = [&](CUtensorMap& to, const View& view, int64_t steps, int64_t heads, int64_t width) {
    return make_tile_map(to, {.dtype = shape.dtype,
                              .view = view,
                              .tokens = shape.tokens,
                              .steps = steps,
                              .heads = heads,
                              .width = width});
  };
  const char* error = map(p.q, in.q, 1, shape.key_heads, shape.key_width);
  if (!error) error = map(p.k, in.k, L, shape.key_heads, shape.key_width);
  if (!error) error = map(p.w, in.w, L, Hv, V);
  if (!error) error = map(p.d_o, d_o, 1, Hv, V);
  return error ? error : map(p.y, y, L, Hv, V);
}

/// Calls f for every window, the last one first, until one has a problem.
template <class F>
const char* each_window(BackwardParams& p, const PrismChunkCudaShape& shape, F f) {
  const int64_t step = window_slots(shape);
  for (p.end = p.schedule.slots(kChunk); p.end > 0; p.end = p.first) {
    p.first = std::max<int64_t>(0, p.end - step);
    if (const char* problem = f()) return problem;
  }
  return nullptr;
}

}  // namespace

int64_t prism_chunk_backward_workspace(const PrismChunkCudaShape& shape) {
  return Workspace(shape, nullptr).bytes;
}

const char* prism_chunk_backward(const PrismChunkCudaShape& shape, const PrismChunkInputs& in,
                                 const void* chunk_states, const View& d_o, const void* dfinal_state,
                                 const PrismChunkGradients& out, void* workspace, CUstream_st* stream) {
  const Workspace memory(shape, workspace);
  BackwardParams p;
  if (const char* error = make_maps(p, shape, in, d_o, out.dw)) return error;
  p.schedule = schedule_of(shape);
  p.segments = segments_of(shape);
  p.states = static_cast<const uint8_t*>(chunk_states);
  p.transitions = static_cast<const char*>(chunk_states) + p.schedule.slots(kChunk) * state_bytes(shape);
  p.segment_states = memory.segment_states;
  p.records = memory.records;
  p.d_states = memory.d_states;
  p.d_final = static_cast<const float*>(dfinal_state);
  p.d_initial = static_cast<float*>(out.dinitial_state);
  p.dq = out.dq, p.dk = out.dk, p.dw = out.dw;
  p.db = static_cast<float*>(out.db), p.dg = static_cast<float*>(out.dg);
  p.steps = static_cast<int>(shape.steps);
  p.key_heads = static_cast<int>(shape.key_heads), p.heads = static_cast<int>(shape.heads);
  p.key_width = static_cast<int>(shape.key_width), p.value_width = static_cast<int>(shape.value_width);
  p.scale = static_cast<float>(shape.scale);
  const bool cut = p.segments.slots() > 0, one_window = window_slots(shape) >= p.schedule.slots(kChunk);
  const auto solve = [&] { return launch_solve(shape, in, p.first, p.end, memory.records, stream); };
  const char* error = nullptr;
  if (cut)
    error = each_window(p, shape, [&] {
      const char* problem = solve();
      return problem ? problem : launch_segment_gradients(p, shape.dtype, stream);
    });
  if (cut && !error) error = launch_segment_folds(p, shape.dtype, stream);
  if (error) return error;
  int turn = 0;
  return each_window(p, shape, [&] {
    p.carried = memory.carries[turn], p.carry = memory.carries[turn ^ 1];
    turn ^= 1;
    const char* problem = cut && one_window ? nullptr : solve();  // its records are still there
    if (!problem) problem = launch_state_gradients(p, shape.dtype, stream);
    if (problem) return problem;
    return shape.dtype == Scalar::kBFloat16 ? launch_chunk_gradients_bf16(p, stream)
                                            : launch_chunk_gradients_f16(p, stream);
  });
}

}  // namespace prism::kernels::cuda
