#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/kernels/prism_refine.h"
#include "prism/ops/implementation.h"

namespace prism {

using kernels::Nonlinearity;
using kernels::Residual;

struct PrismRefineResult {
  at::Tensor w;         ///< [...,L,H,V]
  at::Tensor delta;     ///< [...,L,H,V], undefined unless asked for
  at::Tensor residual;  ///< [...,H,V]: r_{L+1}, undefined unless asked for
};

/// The refinement loop (eq. 14-16): r_1 = v - u; d_l = phi(p_l r_l); r_{l+1} = r_l - d_l; w_l = beta_l d_l.
/// v, u [...,H,V] (u undefined: 0); p [...,L,H,V] (absent: p = 1); beta [...,L,H] in fp32 (fp64 with fp64;
/// undefined: 1, then p is needed). fp64, fp32, bf16 (fp16 composed), any strides. One fused pass,
/// differentiable once in v, u, p and beta; backward recomputes the loop. Throws Error naming the tensor that
/// does not fit.
PrismRefineResult prism_refine(const at::Tensor& v, const at::Tensor& u, const std::optional<at::Tensor>& p,
                               const at::Tensor& beta, Nonlinearity nonlinearity = Nonlinearity::kGelu,
                               Residual residual = Residual::kSubtract,
                               bool return_delta_and_residual = false,
                               Implementation implementation = Implementation::kAuto);

}  // namespace prism
