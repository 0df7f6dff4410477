// Mamba-2, arXiv 2405.21060; layer as in state-spaces/mamba and flash-linear-attention's layers/mamba2.py.
// In the names of the recurrence q = C, k = B, v = x.
#include "prism/mixers/mamba2.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

constexpr double kGroupNormEps = 1e-5;

}  // namespace

Mamba2::Mamba2(const Config& c, int64_t width)
    : MatrixMixer(
          [&] {
            if (c.expand * width % c.heads)
              usage_error("mamba2: {} heads do not divide the inner width {} (expand {} x model width {})",
                          c.heads, c.expand * width, c.expand, width);
            if (c.heads % c.groups)
              usage_error("mamba2: groups {} does not divide heads {}", c.groups, c.heads);
            return Shape{c.heads, c.groups, c.state_width, c.expand * width / c.heads, c.conv_width};
          }(),
          width, c.heads) {
  conv_bias_ = register_parameter("conv_bias", initial::uniform({conv_channels()}, conv_width_));
  A_log_ = register_parameter("A_log", initial::mamba2_A_log(heads_));
  dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(heads_));
  skip_ = register_parameter("D", initial::ones({heads_}));
  const int64_t inner = heads_ * value_width_;
  norm_weight_ = register_parameter("norm_weight", initial::ones({inner}));
  gate_weight_ = register_parameter("gate_weight", initial::linear(inner, width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, inner));
}

at::Tensor Mamba2::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [C, B, x, dt_raw] = split(projected, stream);
  const at::Tensor dt = at::softplus(dt_raw + dt_bias_);
  const at::Tensor y = stream.recur({.q = C,
                                     .k = B.unsqueeze(-3),
                                     .w = delta::gated_write(dt, x),
                                     .b = at::zeros_like(dt).detach(),
                                     .g = dt * -at::exp(A_log_),
                                     .scale = 1.0});
  return y + skip_.unsqueeze(-1).to(x.scalar_type()) * x;
}

at::Tensor Mamba2::output(const at::Tensor& y, const at::Tensor& x) const {
  const at::Tensor gated = y.flatten(-2) * at::silu(at::linear(x, gate_weight_));
  const at::Tensor groups = gated.unflatten(-1, {key_heads_, -1});
  const at::Tensor unit = rms_norm(
      groups, at::ones({groups.size(-1)}, norm_weight_.options().requires_grad(false)), kGroupNormEps);
  return at::linear(unit.flatten(-2) * norm_weight_.to(unit.scalar_type()), out_weight_);
}

}  // namespace prism
