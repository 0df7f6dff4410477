#pragma once
#include <cstdint>

namespace prism::kernels {

/// Element type of the activations; kFloat16 on GPUs alone. Gates (b, g, beta) are double with kFloat64 and
/// float otherwise.
enum class Scalar { kFloat64, kFloat32, kBFloat16, kFloat16 };

/// A read-only tensor [tokens, (steps,) heads, width] whose last dimension is contiguous. Strides in
/// elements. Tokens of all rows follow each other: token i of the call is at data + i * token_stride.
struct View {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t step_stride = 0;  ///< unused without a step dimension
  int64_t head_stride = 0;
};

/// Where each sequence starts: sequence n covers tokens [offsets[n], offsets[n + 1]); host memory, offsets[0]
/// = 0.
struct Sequences {
  int64_t count = 0;
  const int64_t* offsets = nullptr;
};

}  // namespace prism::kernels
