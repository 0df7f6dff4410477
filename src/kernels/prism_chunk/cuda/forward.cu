// The forward: solve, then the scan; long rows of few heads take two scans, one for the segments' states and
// transition matrices, one for the outputs.
#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/prism_chunk/cuda/scan.h"

namespace prism::kernels::cuda {
namespace {

int panels_of(const PrismChunkCudaShape& shape) {
  return static_cast<int>(padded_width(shape.key_width) / 64);
}

int64_t slots_of(const PrismChunkCudaShape& shape) { return schedule_of(shape).slots(kChunkTokens); }
SegmentLayout segment_layout(const PrismChunkCudaShape& shape) {
  return {shape.heads, static_cast<int>(value_slices(shape.value_width))};
}

/// Where the segments' states and their transition matrices begin in the workspace. With chunk states the
/// matrices lie behind those instead, for the backward.
struct Workspace {
  int64_t segment_states, transitions, bytes;
  explicit Workspace(const PrismChunkCudaShape& shape) {
    const int64_t each = segment_layout(shape).bytes(segments_of(shape).slots());
    segment_states = (record_bytes(shape, slots_of(shape)) + 255) / 256 * 256;
    transitions = segment_states + each;
    bytes = transitions + each;
  }
};

const char* make_maps(ScanParams& params, const PrismChunkCudaShape& shape, const PrismChunkInputs& in) {
  TileMap map{.dtype = shape.dtype,
              .view = in.q,
              .tokens = shape.tokens,
              .steps = 1,
              .heads = shape.key_heads,
              .width = shape.key_width,
              .panels = panels_of(shape)};
  if (const char* problem = make_tile_map(params.q, map)) return problem;
  map.view = in.k, map.steps = shape.steps;
  if (const char* problem = make_tile_map(params.k, map)) return problem;
  map.view = in.w, map.heads = shape.heads, map.width = shape.value_width, map.panels = 1;
  return make_tile_map(params.w, map);
}

}  // namespace

bool prism_chunk_supports(const PrismChunkCudaShape& shape) {
  const int64_t K = shape.key_width;
  return is_hopper() && (shape.dtype == Scalar::kBFloat16 || shape.dtype == Scalar::kFloat16) &&
         shape.tokens < int64_t{1} << 31 && (K == 32 || K == 64 || K == 128) && shape.value_width == K &&
         shape.steps >= 1 && shape.steps <= 4 && shape.key_heads >= 1 && shape.heads % shape.key_heads == 0;
}

int64_t prism_chunk_states_bytes(const PrismChunkCudaShape& shape) {
  return kept_states(slots_of(shape), shape.tokens, shape.heads, shape.value_width) * state_bytes(shape);
}

int64_t prism_chunk_forward_workspace(const PrismChunkCudaShape& shape) { return Workspace(shape).bytes; }

const char* prism_chunk_forward(const PrismChunkCudaShape& shape, const PrismChunkInputs& in, void* o,
                                void* final_state, void* chunk_states, void* workspace, CUstream_st* stream) {
  char* const memory = static_cast<char*>(workspace);
  const Workspace parts(shape);
  if (const char* problem = launch_solve(shape, in, 0, slots_of(shape), memory, stream)) return problem;
  ScanParams params{
      .q_lines = Lines::of(in.q),
      .k_lines = Lines::of(in.k),
      .w_lines = Lines::of(in.w),
      .segments = segments_of(shape),
      .records = memory,
      .initial_state = static_cast<const float*>(in.initial_state),
      .o = o,
      .final_state = static_cast<float*>(final_state),
      .chunk_states = chunk_states,
      .segment_states = memory + parts.segment_states,
      .transitions = chunk_states ? static_cast<char*>(chunk_states) + slots_of(shape) * state_bytes(shape)
                                  : memory + parts.transitions,
      .steps = static_cast<int>(shape.steps),
      .heads = static_cast<int>(shape.heads),
      .key_heads = static_cast<int>(shape.key_heads),
      .key_width = static_cast<int>(shape.key_width),
      .value_width = static_cast<int>(shape.value_width),
      .slices = static_cast<int>(value_slices(shape.value_width)),
      .scale = static_cast<float>(shape.scale)};
  if (shape.tokens > 0)
    if (const char* problem = make_maps(params, shape, in)) return problem;
  const int64_t slots = params.segments.slots();
  if (slots > 0) {
    params.jobs = slots * shape.heads * params.slices;
    if (const char* problem = launch_scan<ScanPass::kTransitions>(params, shape.dtype, stream))
      return problem;
  }
  params.jobs = params.segments.pieces() * shape.heads * params.slices;
  return launch_scan<ScanPass::kOutputs>(params, shape.dtype, stream);
}

}  // namespace prism::kernels::cuda
