// RWKV-7 time mixing, arXiv 2503.14456; layer and initial values as in BlinkDL/RWKV-LM RWKV-v7 and
// flash-linear-attention's layers/rwkv7.py, those of a first layer.
#include "prism/mixers/rwkv7.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "mixers/delta_common.h"
#include "mixers/gate_common.h"
#include "mixers/parameters.h"
#include "mixers/token_shift.h"
#include "prism/core/error.h"

namespace prism {
namespace {

/// The inputs that are mixed with the token before, in the order of shift_mix's rows, and their initial
/// exponents.
enum Shifted { kR, kW, kK, kV, kA, kG };
constexpr double kShiftExponents[] = {0.2, 0.9, 0.7, 0.7, 0.9, 0.2};

int64_t rank_or(int64_t given, double factor, int64_t width) {
  if (given) return given;
  return std::max<int64_t>(32, std::lround(factor * std::sqrt(double(width)) / 32) * 32);
}

/// gain times a matrix with orthonormal rows or columns, whichever are fewer.
at::Tensor orthogonal(int64_t rows, int64_t columns, double gain) {
  const at::Tensor normal = initial::normal({std::max(rows, columns), std::min(rows, columns)}, 1);
  const auto [Q, R] = at::linalg_qr(normal);
  const at::Tensor matrix = gain * Q * R.diagonal().sign();
  return (rows < columns ? matrix.t() : matrix).contiguous();
}

/// 0..1 over all channels.
at::Tensor ramp(int64_t width) { return width == 1 ? at::zeros({1}) : at::linspace(0, 1, width); }
/// -1..1 over the channels of each head, its square with the sign kept.
at::Tensor zigzag(int64_t heads, int64_t head_width) {
  const at::Tensor x = head_width == 1 ? at::zeros({1}) : at::linspace(-1, 1, head_width);
  return (x * x.abs()).repeat({heads});
}

}  // namespace

Rwkv7::Rwkv7(const Config& config, int64_t width) : width_(width), heads_(config.heads) {
  if (width % heads_) usage_error("rwkv7: {} heads do not divide the model width {}", heads_, width);
  head_width_ = width / heads_;
  const at::Tensor place = at::arange(width) / double(width);
  std::vector<at::Tensor> mixes;
  for (const double exponent : kShiftExponents) mixes.push_back(1 - at::pow(place, exponent));
  shift_mix_ = register_parameter("shift_mix", at::stack(mixes));
  r_weight_ = register_parameter("r_weight", orthogonal(width, width, 1));
  k_weight_ = register_parameter("k_weight", orthogonal(width, width, 0.1));
  v_weight_ = register_parameter("v_weight", orthogonal(width, width, 1));
  const at::Tensor zigzags = zigzag(heads_, head_width_), x = ramp(width);
  decay_ = register_low_rank("decay", rank_or(config.decay_rank, 2.5, width), -5.5 + 6 * x + 2.5 * zigzags);
  rate_ = register_low_rank("rate", rank_or(config.rate_rank, 2.5, width),
                            -0.19 + 0.3 * zigzags + 0.4 * (x - 0.5));
  gate_ = register_low_rank("gate", rank_or(config.gate_rank, 5, width), {});
  register_channel_scales();
  norm_weight_ = register_parameter("norm_weight", initial::ones({width}));
  norm_bias_ = register_parameter("norm_bias", initial::zeros({width}));
  out_weight_ = register_parameter("out_weight", initial::zeros({width, width}));
}

Rwkv7::LowRank Rwkv7::register_low_rank(const char* name, int64_t rank, const at::Tensor& bias) {
  const std::string prefix = name;
  const double gain = 0.1 * std::sqrt(std::max(1.0, double(width_) / double(rank)));
  LowRank weights{register_parameter(prefix + "_down_weight", initial::zeros({rank, width_})),
                  register_parameter(prefix + "_up_weight", orthogonal(width_, rank, gain)),
                  {}};
  if (bias.defined()) weights.bias = register_parameter(prefix + "_bias", bias);
  return weights;
}

void Rwkv7::register_channel_scales() {
  k_k_ = register_parameter("k_k", 0.71 - 0.1 * (ramp(width_) - 0.5));
  k_a_ = register_parameter("k_a", 1.02 * initial::ones({width_}));
  r_k_ = register_parameter("r_k", -0.04 * initial::ones({heads_, head_width_}));
}

Rwkv7::Token Rwkv7::token(const at::Tensor& x, const at::Tensor& previous) const {
  const at::Tensor step = previous - x;
  const auto shifted = [&](Shifted which) { return x + shift_mix_[which] * step; };
  const auto raised = [&](const at::Tensor& low, const LowRank& weights) {
    return at::linear(low, weights.up, weights.bias);
  };
  const at::Tensor low_w = at::tanh(at::linear(shifted(kW), decay_.down));
  const at::Tensor w = -std::exp(-0.5) * at::sigmoid(delta::gate_typed(raised(low_w, decay_)));
  const at::Tensor a = at::sigmoid(raised(at::linear(shifted(kA), rate_.down), rate_));
  const at::Tensor k = at::linear(shifted(kK), k_weight_), kk = by_head(k * k_k_);
  const at::Tensor length = kk.norm(2, -1, true).clamp_min(1e-12);
  return {.r = by_head(at::linear(shifted(kR), r_weight_)),
          .w = by_head(w),
          .k = by_head(k * (1 + (a - 1) * k_a_)),
          .v = by_head(at::linear(shifted(kV), v_weight_)),
          .kk = kk / length,
          .a = by_head(a),
          .g = raised(at::sigmoid(at::linear(shifted(kG), gate_.down)), gate_)};
}

at::Tensor Rwkv7::mix(const at::Tensor& x, const TokenStream& stream) {
  const Token t = token(x, token_before(x, stream));
  VectorGateArgs args{
      .q = t.r, .k = t.k, .w = t.v, .g = t.w, .erase_read = t.kk, .erase_key = t.kk * t.a, .scale = 1.0};
  args.erase_undecayed = true;
  return output(recur(stream, args), t);
}

at::Tensor Rwkv7::output(const at::Tensor& o, const Token& t) const {
  const double eps = 1e-5 * double(head_width_);
  const at::Tensor normed =
      at::layer_norm(o, {head_width_}, {}, {}, eps).flatten(-2) * norm_weight_ + norm_bias_;
  const at::Tensor bonus = (t.r * t.k * r_k_).sum(-1, true) * t.v;
  return at::linear((normed + bonus.flatten(-2)) * t.g, out_weight_);
}

std::vector<StateTensor> Rwkv7::state_tensors() const {
  return {{"S", {heads_, head_width_, head_width_}}, {"shift", {width_}, /*activations=*/true}};
}

}  // namespace prism
