// The meaning of the operation: one token after the other, in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "prism/kernels/prism_chunk.h"

namespace prism::kernels {
namespace {

double load(const void* data, int64_t index, Scalar dtype) {
  if (dtype == Scalar::kFloat64) return static_cast<const double*>(data)[index];
  if (dtype == Scalar::kFloat32) return static_cast<const float*>(data)[index];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[index]} << 16);
}

/// One value head of one sequence; `state` [K, V] carries from token to token.
void run_head(const PrismChunkShape& shape, const PrismChunkInputs& in, int64_t begin, int64_t end,
              int64_t head, std::vector<double>& state, double* o) {
  const int64_t K = shape.key_width, V = shape.value_width, key_head = head / (shape.heads / shape.key_heads);
  const Scalar gate = shape.dtype == Scalar::kFloat64 ? Scalar::kFloat64 : Scalar::kFloat32;
  const auto key = [&](const View& view, int64_t t, int64_t l, int64_t c) {
    return load(view.data, t * view.token_stride + l * view.step_stride + key_head * view.head_stride + c,
                shape.dtype);
  };
  std::vector<double> erased(V);
  for (int64_t t = begin; t < end; ++t) {
    const double b = load(in.b.data, t * in.b.token_stride + head * in.b.head_stride, gate);
    const double a = std::exp(load(in.g.data, t * in.g.token_stride + head * in.g.head_stride, gate));
    const View& read = in.erase_read.data ? in.erase_read : in.k;
    erased.assign(V, 0.0);
    for (int64_t c = 0; c < K; ++c)
      for (int64_t j = 0; j < V; ++j) erased[j] += key(read, t, 0, c) * state[c * V + j];
    for (int64_t c = 0; c < K; ++c)
      for (int64_t j = 0; j < V; ++j)
        state[c * V + j] = a * (state[c * V + j] - b * key(in.k, t, 0, c) * erased[j]);
    for (int64_t l = 0; l < shape.steps; ++l)
      for (int64_t c = 0; c < K; ++c)
        for (int64_t j = 0; j < V; ++j)
          state[c * V + j] +=
              key(in.k, t, l, c) *
              load(in.w.data, t * in.w.token_stride + l * in.w.step_stride + head * in.w.head_stride + j,
                   shape.dtype);
    double* out = o + (t * shape.heads + head) * V;
    for (int64_t j = 0; j < V; ++j) out[j] = 0;
    for (int64_t c = 0; c < K; ++c)
      for (int64_t j = 0; j < V; ++j) out[j] += shape.scale * key(in.q, t, 0, c) * state[c * V + j];
  }
}

}  // namespace

void prism_chunk_reference(const PrismChunkShape& shape, const PrismChunkInputs& in, double* o,
                           double* final_state) {
  const int64_t size = shape.key_width * shape.value_width;
  const Scalar state_type = shape.dtype == Scalar::kFloat64 ? Scalar::kFloat64 : Scalar::kFloat32;
  std::vector<double> state(size);
  for (int64_t n = 0; n < shape.sequences.count; ++n) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t base = (n * shape.heads + head) * size;
      for (int64_t i = 0; i < size; ++i)
        state[i] = in.initial_state ? load(in.initial_state, base + i, state_type) : 0.0;
      run_head(shape, in, shape.sequences.offsets[n], shape.sequences.offsets[n + 1], head, state, o);
      if (final_state) std::copy(state.begin(), state.end(), final_state + base);
    }
  }
}

}  // namespace prism::kernels
