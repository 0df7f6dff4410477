// Comba, arXiv 2506.02475; layer as in flash-linear-attention's layers/comba.py, except that p = sigmoid(d) k
// keeps its length: the public kernel makes it a unit vector, which undoes d.
#include "prism/mixers/comba.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

/// exp(-40) is nothing beside 1 in any dtype, and exp(40) is far from overflowing.
constexpr double kLowestLogDecay = -40;

}  // namespace

Comba::Comba(const Config& config, int64_t width) : MatrixMixer(config, width, kName, 2 * config.heads) {
  A_log_ = register_parameter("A_log", initial::mamba_A_log(heads_));
  dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(heads_));
  feedback_ = register_parameter("feedback", initial::ones({key_heads_}));
  correction_ = register_parameter("correction", config.correction * initial::ones({key_heads_}));
  register_output(config.output_norm, config.output_gate);
}

at::Tensor Comba::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  const auto ba = gates.split_with_sizes({heads_, heads_}, -1);
  const at::Tensor feedback = at::sigmoid(feedback_).unsqueeze(-1).to(k.scalar_type());
  const at::Tensor unit = l2_norm(k), p = feedback * unit;
  const at::Tensor corrected = q - correction_.unsqueeze(-1).to(k.scalar_type()) * (feedback * k);
  const at::Tensor b = at::sigmoid(ba[0]);
  const at::Tensor g = delta::mamba_log_decay(ba[1], A_log_, dt_bias_).clamp_min(kLowestLogDecay);
  // a (I - b/a k p^T) = a I - b k p^T: the decayed erase strength makes the erase read the state before
  // decay.
  return stream.recur({.q = l2_norm(corrected),
                       .k = unit.unsqueeze(-3),
                       .w = delta::gated_write(b, v),
                       .b = b * at::exp(-g),
                       .g = g,
                       .erase_read = p});
}

at::Tensor Comba::output(const at::Tensor& o, const at::Tensor& x) const {
  at::Tensor y = norm_weight_.defined() ? rms_norm(o, norm_weight_) : o;
  if (gate_weight_.defined())
    y = y * at::sigmoid(at::linear(x, gate_weight_).unflatten(-1, {heads_, value_width_}));
  return at::linear(y.flatten(-2), out_weight_);
}

}  // namespace prism
