// Gated linear attention, arXiv 2312.06635; layer as in flash-linear-attention's layers/gla.py.
#include "prism/mixers/gla.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/gate_common.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

constexpr double kNormEps = 1e-5;

}  // namespace

Gla::Shape Gla::resolved(const GlaConfig& c, int64_t width) {
  int64_t key_width = c.key_width;
  if (!key_width) {
    if (width % (2 * c.heads))
      usage_error("{}: 2 x {} heads do not divide the model width {}; set key_width", Gla::kName, c.heads,
                  width);
    key_width = width / (2 * c.heads);
  }
  const auto h = delta::resolved_heads({c.heads, c.key_heads, key_width, c.value_width}, width, Gla::kName);
  return {h.heads, h.key_heads, h.key_width, h.value_width, c.conv_width};
}

Gla::Gla(const Config& config, int64_t width)
    : MatrixMixer(resolved(config, width), width, config.gate_rank), gate_divisor_(config.gate_divisor) {
  const int64_t channels = heads_ * key_width_;
  gate_up_weight_ = register_parameter("gate_up_weight", initial::linear(channels, config.gate_rank));
  gate_up_bias_ = register_parameter("gate_up_bias", initial::uniform({channels}, config.gate_rank));
  register_output(config.output_norm, config.output_gate);
}

at::Tensor Gla::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, low_rank] = split(projected, stream);
  const at::Tensor a = delta::gate_typed(at::linear(low_rank, gate_up_weight_, gate_up_bias_));
  const at::Tensor g = at::log_sigmoid(a) / gate_divisor_;
  return recur(stream, {.q = q, .k = k, .w = v, .g = g.unflatten(-1, {heads_, key_width_})});
}

at::Tensor Gla::output(const at::Tensor& o, const at::Tensor& x) const {
  at::Tensor y = o;
  if (gate_weight_.defined()) {
    const at::Tensor gate = at::linear(x, gate_weight_).unflatten(-1, {heads_, value_width_});
    y = norm_weight_.defined() ? gated_rms_norm(o, gate, norm_weight_, kNormEps) : o * at::silu(gate);
  } else if (norm_weight_.defined()) {
    y = rms_norm(o, norm_weight_, kNormEps);
  }
  return at::linear(y.flatten(-2), out_weight_);
}

}  // namespace prism
