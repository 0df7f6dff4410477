#pragma once
// Causal depthwise convolution over packed sequences (eq. 9 of arXiv 2602.10796):
//   y_t = phi(bias + sum_j weight[:, j] x_{t-W+1+j}),   phi = SiLU or the identity
// Tokens before a sequence's start are its carried-in state, or zeros.
#include "prism/kernels/types.h"

namespace prism::kernels {

struct ShortConvShape {
  Scalar dtype = Scalar::kFloat32;
  Sequences sequences;
  int64_t channels = 1, width = 4;  ///< D, W >= 1
  bool silu = true;
  int64_t tokens() const { return sequences.count ? sequences.offsets[sequences.count] : 0; }
};

/// x [N, D] (token_stride; the other strides are unused). weight [D, W], bias [D] or null and initial_state
/// [sequences, D, W-1] or null are contiguous. The state holds the last W-1 inputs, the latest last. All in
/// `dtype`.
struct ShortConvInputs {
  View x;
  const void *weight = nullptr, *bias = nullptr, *initial_state = nullptr;
};

/// y [N, D] contiguous; final_state [sequences, D, W-1] may be null and may be initial_state itself.
void short_conv_forward(const ShortConvShape& shape, const ShortConvInputs& in, void* y, void* final_state);

/// Contiguous gradients in the inputs' shapes and `dtype`; each may be null. The carried-in state gets none.
/// The sums over tokens are taken in blocks of fixed length, so they do not depend on the thread count.
struct ShortConvGradients {
  void *dx = nullptr, *dweight = nullptr, *dbias = nullptr;
};
void short_conv_backward(const ShortConvShape& shape, const ShortConvInputs& in, const View& dy,
                         const ShortConvGradients& out);

}  // namespace prism::kernels
