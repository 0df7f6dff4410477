#pragma once
// What the implementations of short_conv get: checked arguments. `bias` and `history` may be undefined.
#include <ATen/core/Tensor.h>

#include "prism/ops/packing.h"

namespace prism {

/// Any device, as a sum over taps; index vectors are made on the host.
at::Tensor short_conv_composed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Packing& packing, const at::Tensor& history);
at::Tensor short_conv_history_composed(const at::Tensor& x, int64_t width, const Packing& packing,
                                       const at::Tensor& history);
at::Tensor short_conv_step_composed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const at::Tensor& history);

/// Whether the CUDA kernels take inputs x and this width. They wait for nothing on the host.
bool short_conv_has_cuda_kernel(const at::Tensor& x, int64_t width);
at::Tensor short_conv_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const Packing& packing, const at::Tensor& history);
at::Tensor short_conv_history_cuda(const at::Tensor& x, int64_t width, const Packing& packing,
                                   const at::Tensor& history);
/// `history` contiguous and in the type of x.
at::Tensor short_conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& history);

}  // namespace prism
