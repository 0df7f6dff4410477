// The meaning of the operation: one token after the other, in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "prism/kernels/vector_gate.h"

namespace prism::kernels {
namespace {

double load(const void* data, int64_t index, Scalar dtype) {
  if (dtype == Scalar::kFloat64) return static_cast<const double*>(data)[index];
  if (dtype == Scalar::kFloat32) return static_cast<const float*>(data)[index];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[index]} << 16);
}

/// One value head of one sequence; `S` [K, V] carries from token to token.
void run_head(const VectorGateShape& shape, const VectorGateInputs& in, int64_t begin, int64_t end,
              int64_t head, std::vector<double>& S, double* o) {
  const int64_t K = shape.key_width, V = shape.value_width, key_head = head / (shape.heads / shape.key_heads);
  const Scalar gate = shape.dtype == Scalar::kFloat64 ? Scalar::kFloat64 : Scalar::kFloat32;
  const auto at = [](const View& view, int64_t t, int64_t h, int64_t c, Scalar dtype) {
    return load(view.data, t * view.token_stride + h * view.head_stride + c, dtype);
  };
  const View &read = in.erase_read.data ? in.erase_read : in.k,
             &erase = in.erase_key.data ? in.erase_key : in.k;
  std::vector<double> u(V);
  for (int64_t t = begin; t < end; ++t) {
    const auto decay = [&](int64_t c) { return std::exp(at(in.g, t, head, c, gate)); };
    const double b = in.b.data ? at(in.b, t, head, 0, gate) : 1.0;
    std::fill(u.begin(), u.end(), 0.0);
    for (int64_t c = 0; c < K && in.erases(); ++c)
      for (int64_t j = 0; j < V; ++j)
        u[j] +=
            at(read, t, key_head, c, shape.dtype) * (shape.erase_undecayed ? 1.0 : decay(c)) * S[c * V + j];
    for (int64_t c = 0; c < K; ++c) {
      const double a = decay(c), k = at(in.k, t, key_head, c, shape.dtype),
                   e = in.erases() ? b * at(erase, t, key_head, c, shape.dtype) : 0.0;
      for (int64_t j = 0; j < V; ++j)
        S[c * V + j] = a * S[c * V + j] - e * u[j] + k * at(in.w, t, head, j, shape.dtype);
    }
    double* const out = o + (t * shape.heads + head) * shape.output_width();
    std::fill_n(out, shape.output_width(), 0.0);
    for (int64_t c = 0; c < K; ++c)
      for (int64_t j = 0; j < V; ++j)
        out[shape.read_values ? c : j] +=
            shape.scale * at(in.q, t, key_head, shape.read_values ? j : c, shape.dtype) * S[c * V + j];
  }
}

}  // namespace

void vector_gate_reference(const VectorGateShape& shape, const VectorGateInputs& in, double* o,
                           double* final_state) {
  const int64_t size = shape.key_width * shape.value_width;
  const Scalar state_type = shape.dtype == Scalar::kFloat64 ? Scalar::kFloat64 : Scalar::kFloat32;
  std::vector<double> S(size);
  for (int64_t n = 0; n < shape.sequences.count; ++n) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t base = (n * shape.heads + head) * size;
      for (int64_t i = 0; i < size; ++i)
        S[i] = in.initial_state ? load(in.initial_state, base + i, state_type) : 0.0;
      run_head(shape, in, shape.sequences.offsets[n], shape.sequences.offsets[n + 1], head, S, o);
      if (final_state) std::copy(S.begin(), S.end(), final_state + base);
    }
  }
}

}  // namespace prism::kernels
