#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace prism {

/// x / sqrt(sum x^2 + eps) over the last dimension; the result's norm stays below 1. Any float dtype, sums in
/// fp32 (fp64 with fp64), the result in x's dtype. Differentiable once.
at::Tensor l2_norm(const at::Tensor& x, double eps = 1e-6);

/// weight x / sqrt(mean x^2 + eps) over the last dimension of x [...,C], weight [C].
/// Under autocast on a GPU with libprism_cuda.so the norm of an fp32 x has autocast's dtype, rounded once:
/// its consumer is a matrix product.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps = 1e-6);

/// rms_norm(o) SiLU(gate), o and gate [...,C]: the output norm of the delta family.
at::Tensor gated_rms_norm(const at::Tensor& o, const at::Tensor& gate, const at::Tensor& weight,
                          double eps = 1e-6);

}  // namespace prism
