#pragma once
#include <ATen/core/Tensor.h>

namespace prism {

/// The step size of a delta rule that holds the flow dS/dt = k (v - S^T k)^T for the time b and solves it
/// exactly: b' = (1 - exp(-b |k|^2)) / |k|^2, b where k = 0 (EFLA, arXiv 2512.12602). b [...,H] >= 0 in the
/// dtype of gates, k [...,Hk,K] with H a multiple of Hk. Computed in fp64; b' [...,H] in b's dtype, b' |k|^2
/// in [0, 1). Differentiable once.
at::Tensor exact_step_size(const at::Tensor& b, const at::Tensor& k);

}  // namespace prism
