#pragma once
// The refinement loop (eq. 14-16 of arXiv 2602.10796), elementwise:
//   r_1 = v - u;   d_l = phi(p_l r_l);   r_{l+1} = r_l - d_l;   w_l = beta_l d_l
#include "prism/kernels/types.h"

namespace prism::kernels {

enum class Nonlinearity { kGelu, kIdentity };  ///< phi: exact (erf) GELU, or x
enum class Residual { kSubtract, kNone };      ///< kNone: r_l = r_1 for every l

struct PrismRefineShape {
  Scalar dtype = Scalar::kFloat32;
  int64_t tokens = 0, steps = 1, heads = 1, width = 1;
  Nonlinearity nonlinearity = Nonlinearity::kGelu;
  Residual residual = Residual::kSubtract;
};

/// v, u [N,H,V]; p [N,L,H,V] or data null (p = 1); beta [N,L,H] in the gate type, or data null (beta = 1).
/// `u` may have null data (u = 0).
struct PrismRefineInputs {
  View v, u, p, beta;
};

/// w [N,L,H,V], delta [N,L,H,V], residual r_{L+1} [N,H,V], contiguous; each may be null.
void prism_refine_forward(const PrismRefineShape& shape, const PrismRefineInputs& in, void* w, void* delta,
                          void* residual);

/// Gradients, contiguous in the inputs' shapes; each may be null. dw, ddelta, dresidual: upstream, data may
/// be null.
struct PrismRefineGradients {
  void *dv = nullptr, *du = nullptr, *dp = nullptr, *dbeta = nullptr;
};
void prism_refine_backward(const PrismRefineShape& shape, const PrismRefineInputs& in, const View& dw,
                           const View& ddelta, const View& dresidual, const PrismRefineGradients& out);

}  // namespace prism::kernels
