#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// Initial values of parameters, drawn from the default generator.
namespace prism::initial {

/// torch's Linear: uniform in +-1/sqrt(inputs). [outputs, inputs]
at::Tensor linear(int64_t outputs, int64_t inputs);
/// The same for any shape, given the number of inputs of each output.
at::Tensor uniform(at::IntArrayRef shape, int64_t inputs);
at::Tensor normal(at::IntArrayRef shape, double deviation);
at::Tensor zeros(at::IntArrayRef shape);
at::Tensor ones(at::IntArrayRef shape);

/// log A of Gated DeltaNet: A uniform in (0, 16).
at::Tensor mamba_A_log(int64_t heads);
/// log A of Mamba-2: A uniform in (1, 16).
at::Tensor mamba2_A_log(int64_t heads);
/// dt_bias of Mamba-2: softplus(dt_bias) log-uniform in [0.001, 0.1].
at::Tensor mamba_dt_bias(int64_t heads);
/// Biases of a sigmoid gate whose half-lives spread from 8 to 1024 tokens over the heads.
at::Tensor half_life_bias(int64_t heads);

}  // namespace prism::initial
