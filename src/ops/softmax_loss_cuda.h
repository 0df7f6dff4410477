#pragma once
// full_softmax_loss through the CUDA kernels of libprism_cuda.so.
#include <ATen/core/Tensor.h>

namespace prism {

/// Whether the kernels serve a call: h on a GPU in bf16, fp16 or fp32, and libprism_cuda.so loaded.
bool has_cuda_softmax_loss(const at::Tensor& h);

/// The loss, fp32, and its gradients with respect to h [N,D] and the items [I,D].
struct SoftmaxLossGradients {
  at::Tensor loss, d_h, d_items;
};
/// The matrix products take h's dtype; scores and sums are fp32 whatever it is. d_h has it, d_items is fp32.
/// Nothing waits for the device.
SoftmaxLossGradients softmax_loss_cuda(const at::Tensor& h, const at::Tensor& items,
                                       const at::Tensor& targets);

}  // namespace prism
