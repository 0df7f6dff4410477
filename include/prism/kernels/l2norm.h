#pragma once
// Rows of length one: y = x (sum x^2 + eps)^-1/2, over the last dimension.
#include "prism/kernels/types.h"

namespace prism::kernels {

struct L2NormShape {
  Scalar dtype = Scalar::kFloat32;
  int64_t tokens = 0, heads = 1, width = 1;
  double eps = 1e-6;
};

/// x [N, H, K]; y [N, H, K] contiguous.
void l2norm_forward(const L2NormShape& shape, const View& x, void* y);

/// dx [N, H, K] contiguous, from x and the upstream dy.
void l2norm_backward(const L2NormShape& shape, const View& x, const View& dy, void* dx);

}  // namespace prism::kernels
