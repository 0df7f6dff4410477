#pragma once
// RMSNorm over the last dimension, optionally gated as at the output of a mixer:
//   y = x (mean x^2 + eps)^-1/2 * weight * SiLU(gate)
#include "prism/kernels/types.h"

namespace prism::kernels {

struct RmsNormShape {
  Scalar dtype = Scalar::kFloat32;
  int64_t tokens = 0, heads = 1, width = 1;
  double eps = 1e-6;
};

/// x and gate [N, H, V]; gate may have null data (no gate). weight [V] in `dtype`, or null (ones).
struct RmsNormInputs {
  View x;
  const void* weight = nullptr;
  View gate;
};

/// y [N, H, V] contiguous.
void rms_norm_forward(const RmsNormShape& shape, const RmsNormInputs& in, void* y);

/// Contiguous gradients in the inputs' shapes and `dtype`; each may be null. dweight is summed in blocks of a
/// fixed number of rows, so it does not depend on the thread count.
struct RmsNormGradients {
  void *dx = nullptr, *dweight = nullptr, *dgate = nullptr;
};
void rms_norm_backward(const RmsNormShape& shape, const RmsNormInputs& in, const View& dy,
                       const RmsNormGradients& out);

}  // namespace prism::kernels
