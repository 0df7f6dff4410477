#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "prism/mixers/mixer.h"

// What the mixers with a matrix state and a short convolution share.
namespace prism::delta {

/// Gates and states are fp32 whatever the activations, fp64 with fp64.
at::Tensor gate_typed(const at::Tensor& x);

/// x W^T [...,rows]. On a GPU further columns of zeros fill the rows up to a multiple of 64 elements: matrix
/// products and kernels run several times slower on rows that 16 bytes do not divide. Not for a few tokens:
/// copying the weight would take longer than the product.
at::Tensor aligned_linear(const at::Tensor& x, const at::Tensor& weight);
/// Columns of these sizes; what aligned_linear added stays behind.
std::vector<at::Tensor> split_columns(const at::Tensor& projected, std::vector<int64_t> sizes);

/// log a = -exp(A_log) softplus(a + dt_bias); the last dimension is the head.
at::Tensor mamba_log_decay(const at::Tensor& a, const at::Tensor& A_log, const at::Tensor& dt_bias);

/// b v as the only one of L = 1 writes: b [...,H], v [...,H,V] -> [...,1,H,V] in v's dtype.
at::Tensor gated_write(const at::Tensor& b, const at::Tensor& v);

/// The short convolution (with SiLU) of `input`, continuing and replacing state->tensors["conv"] where there
/// is a state.
at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                    const Packing& packing, MixerState* state);

/// RMSNorm_head(o) SiLU(gate) W_o^T, where an undefined norm or gate weight leaves its part out. o [...,H,V],
/// x [...,D]; `norm_eps` stands in the root of the norm.
at::Tensor gated_output(const at::Tensor& o, const at::Tensor& x, const at::Tensor& gate_weight,
                        const at::Tensor& norm_weight, const at::Tensor& out_weight, double norm_eps = 1e-6);

/// Heads and widths with their defaults filled in (0: as many heads, model width / heads). Usage errors open
/// with `mixer`.
struct HeadShape {
  int64_t heads, key_heads, key_width, value_width;
};
HeadShape resolved_heads(HeadShape shape, int64_t width, const char* mixer);

/// Zeros [sequences, shape...] for the start of sequences, in the dtype of states.
at::Tensor zero_state(int64_t sequences, at::IntArrayRef shape, const at::Tensor& x);

}  // namespace prism::delta
