#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "prism/ops/packing.h"

namespace prism {

/// Causal depthwise convolution along each sequence, followed by SiLU:
///   y_t = SiLU(bias + sum_j weight[:, W-1-j] x_{t-j}),   j = 0..W-1
/// x [B,T,C] or packed [1,N,C]; weight [C,W]; bias [C] or undefined. `history` [sequences, C, W-1] holds the
/// inputs before the first token, oldest first (absent: zeros). Differentiable once in x, weight and bias.
/// On a GPU with W up to 8 nothing here waits for the device, so calls can be captured in a CUDA graph.
at::Tensor short_conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const Packing& packing, const std::optional<at::Tensor>& history = {});

/// The last W-1 inputs of each sequence, [sequences, C, width - 1], for short_conv or short_conv_step to
/// continue from.
at::Tensor short_conv_history(const at::Tensor& x, int64_t width, const Packing& packing,
                              const std::optional<at::Tensor>& history = {});

/// One token a sequence: x [B,C] -> y [B,C]; `history` [B,C,W-1] is moved on in place. Not differentiable.
/// One launch on a GPU where the history is contiguous and in the type of x.
at::Tensor short_conv_step(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& history);

}  // namespace prism
