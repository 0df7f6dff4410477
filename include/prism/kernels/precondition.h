#pragma once
// Preconditioned write keys (arXiv 2604.21100). Along each sequence, for each head and channel,
//   a_t = exp(g_t) a_{t-1} + beta_t k_t^2,   r = log(a_t + eps) - c,   y_t = x^(-r / (1 + |r|)) k_t
#include "prism/kernels/types.h"

namespace prism::kernels {

struct PreconditionShape {
  Scalar dtype = Scalar::kFloat32;
  Sequences sequences;
  int64_t heads = 1, width = 1;
  double squash = 1.5;  ///< x >= 1: the preconditioner lies between 1/x and x
  double eps = 1e-6;
};

/// k [N,H,K]; beta, g [N,H,1] in the dtype of gates; log_scale c [H] and initial [sequences,H,K] contiguous
/// in it, initial null for zeros.
struct PreconditionInputs {
  View k, beta, g;
  const void *log_scale = nullptr, *initial = nullptr;
};

/// y [N,H,K] contiguous in `dtype`; final [sequences,H,K] contiguous in the dtype of gates, may be null.
void precondition_forward(const PreconditionShape& shape, const PreconditionInputs& in, void* y, void* final);

/// Contiguous gradients: dk in `dtype`, the others in the dtype of gates; dinitial may be null.
struct PreconditionGradients {
  void *dk = nullptr, *dbeta = nullptr, *dg = nullptr, *dlog_scale = nullptr, *dinitial = nullptr;
};
/// dy [N,H,K] as k; dfinal as final, null for zeros. The a_t are made again, nothing is kept.
void precondition_backward(const PreconditionShape& shape, const PreconditionInputs& in, const View& dy,
                           const void* dfinal, const PreconditionGradients& out);

}  // namespace prism::kernels
