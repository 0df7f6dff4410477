// Kimi Delta Attention, arXiv 2510.26692; layer as in flash-linear-attention's layers/kda.py.
#include "prism/mixers/kda.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/gate_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

int64_t rank_of(const KdaConfig& c, int64_t width) {
  if (c.gate_rank) return c.gate_rank;
  return c.value_width ? c.value_width : width / c.heads;
}

}  // namespace

Kda::Kda(const Config& config, int64_t width, const char* name, int64_t more_columns)
    : MatrixMixer(config, width, name, config.heads + rank_of(config, width) + more_columns),
      gate_rank_(rank_of(config, width)),
      decay_(config.decay),
      lower_bound_(config.lower_bound) {
  const int64_t channels = heads_ * key_width_;
  A_log_ = register_parameter("A_log", initial::mamba2_A_log(heads_));
  dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(channels));
  decay_up_weight_ = register_parameter("decay_up_weight", initial::linear(channels, gate_rank_));
  register_output(config.output_norm, /*gate=*/false);
  if (!config.output_gate) return;
  const int64_t values = heads_ * value_width_;
  gate_down_weight_ = register_parameter("gate_down_weight", initial::linear(gate_rank_, width));
  gate_weight_ = register_parameter("gate_weight", initial::linear(values, gate_rank_));
  gate_up_bias_ = register_parameter("gate_bias", initial::uniform({values}, gate_rank_));
}

Kda::Token Kda::token(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  const auto parts = gates.split_with_sizes({heads_, gate_rank_, gates.size(-1) - heads_ - gate_rank_}, -1);
  const at::Tensor b = at::sigmoid(parts[0]);
  return {.q = l2_norm(q),
          .k = l2_norm(k),
          .w = delta::gated_write(b, v).squeeze(-3),
          .b = b,
          .g = log_decay(parts[1]),
          .more = parts[2]};
}

at::Tensor Kda::read(const at::Tensor& projected, const TokenStream& stream) const {
  const Token t = token(projected, stream);
  return recur(stream, {.q = t.q, .k = t.k, .w = t.w, .g = t.g, .b = t.b});
}

at::Tensor Kda::log_decay(const at::Tensor& low_rank) const {
  const at::Tensor f = delta::gate_typed(at::linear(low_rank, decay_up_weight_)) + dt_bias_;
  const at::Tensor by_head = f.unflatten(-1, {heads_, key_width_}), A = at::exp(A_log_).unsqueeze(-1);
  if (decay_ == ChannelDecayKind::kBounded) return lower_bound_ * at::sigmoid(A * by_head);
  return -A * at::softplus(by_head);
}

at::Tensor Kda::output(const at::Tensor& o, const at::Tensor& x) const {
  at::Tensor y = norm_weight_.defined() ? rms_norm(o, norm_weight_) : o;
  if (gate_weight_.defined()) {
    const at::Tensor gate = at::linear(at::linear(x, gate_down_weight_), gate_weight_, gate_up_bias_);
    y = y * at::sigmoid(gate.unflatten(-1, {heads_, value_width_}));
  }
  return at::linear(y.flatten(-2), out_weight_);
}

}  // namespace prism
