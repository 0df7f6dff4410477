// Preconditioned DeltaNet, arXiv 2604.21100; layer as in flash-linear-attention's
// layers/precond_gated_deltanet.py.
#include "prism/mixers/preconditioned_delta_net.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "mixers/preconditioned_key.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

int64_t gate_columns(const PreconditionedDeltaNetConfig& c) {
  const int64_t key_heads = c.key_heads ? c.key_heads : c.heads;
  return (c.gate == ForgetGate::kScalar ? 2 : 1) * c.heads + 2 * key_heads;
}

}  // namespace

PreconditionedDeltaNet::PreconditionedDeltaNet(const Config& config, int64_t width)
    : MatrixMixer(config, width, kName, gate_columns(config)), gate_(config.gate), squash_(config.squash) {
  if (gate_ == ForgetGate::kScalar) {
    A_log_ = register_parameter("A_log", initial::mamba_A_log(heads_));
    dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(heads_));
  }
  curvature_A_log_ = register_parameter("curvature_A_log", initial::mamba_A_log(key_heads_));
  curvature_dt_bias_ = register_parameter("curvature_dt_bias", initial::mamba_dt_bias(key_heads_));
  log_scale_ = register_parameter("log_scale", kCurvatureLogScale * initial::ones({key_heads_}));
  register_output(config.output_norm, config.output_gate);
}

at::Tensor PreconditionedDeltaNet::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  const auto parts = gates.split_with_sizes({heads_, key_heads_, key_heads_, decay_columns()}, -1);
  const at::Tensor b = at::sigmoid(parts[0]), unit = l2_norm(k);
  const at::Tensor curvature_g = delta::mamba_log_decay(parts[2], curvature_A_log_, curvature_dt_bias_);
  const bool gated = gate_ == ForgetGate::kScalar;
  return stream.recur(
      {.q = l2_norm(q),
       .k = preconditioned_key(stream, unit, at::sigmoid(parts[1]), curvature_g, log_scale_, squash_)
                .unsqueeze(-3),
       .w = delta::gated_write(b, v),
       .b = b,
       .g = gated ? delta::mamba_log_decay(parts[3], A_log_, dt_bias_) : at::zeros_like(b).detach(),
       .erase_read = unit});
}

std::vector<StateTensor> PreconditionedDeltaNet::state_tensors() const {
  auto tensors = MatrixMixer::state_tensors();
  tensors.push_back({"A", {key_heads_, key_width_}});
  return tensors;
}

}  // namespace prism
