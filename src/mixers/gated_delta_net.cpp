// Gated DeltaNet, arXiv 2412.06464; layer as in flash-linear-attention's layers/gated_deltanet.py.
#include "prism/mixers/gated_delta_net.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {

GatedDeltaNet::GatedDeltaNet(const Config& config, int64_t width)
    : MatrixMixer(config, width, kName, 2 * config.heads),
      largest_step_(config.negative_eigenvalues ? 2 : 1),
      norm_eps_(config.norm_eps) {
  A_log_ = register_parameter("A_log", initial::mamba_A_log(heads_));
  dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(heads_));
  register_output(config.output_norm, config.output_gate);
}

at::Tensor GatedDeltaNet::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  const auto ba = gates.split_with_sizes({heads_, heads_}, -1);
  at::Tensor b = at::sigmoid(ba[0]);
  if (largest_step_ != 1) b = b * largest_step_;
  return stream.recur({.q = l2_norm(q),
                       .k = l2_norm(k).unsqueeze(-3),
                       .w = delta::gated_write(b, v),
                       .b = b,
                       .g = delta::mamba_log_decay(ba[1], A_log_, dt_bias_)});
}

at::Tensor GatedDeltaNet::output(const at::Tensor& o, const at::Tensor& x) const {
  return delta::gated_output(o, x, gate_weight_, norm_weight_, out_weight_, norm_eps_);
}

}  // namespace prism
