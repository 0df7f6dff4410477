#pragma once
#include <ATen/core/Tensor.h>

namespace prism {

/// x in the type that sums are made in: fp64 as it is, every other type as fp32.
inline at::Tensor wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

}  // namespace prism
