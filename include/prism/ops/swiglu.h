#pragma once
#include <ATen/core/Tensor.h>

namespace prism {

/// SiLU(a) * b of the halves of x [..., 2F] = [a, b]: [..., F] in x's dtype (Shazeer 2020). On a GPU with
/// libprism_cuda.so one kernel in each direction; differentiable once there.
at::Tensor swiglu(const at::Tensor& x);

}  // namespace prism
