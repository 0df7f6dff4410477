// Miras: Moneta, Yaad and Memora, arXiv 2504.13173.
#include "prism/mixers/miras.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"

namespace prism {
namespace {

/// Moneta's W has entries of about 1 / sqrt(3 V) then; Memora's columns are near uniform.
double first_deviation(MirasVariant variant, int64_t key_width) {
  return variant == MirasVariant::kMoneta ? 1 / std::sqrt(double(key_width)) : 0.02;
}

}  // namespace

Miras::Miras(const Config& c, int64_t width)
    : MemoryMixer({.heads = c.heads,
                   .key_width = c.key_width,
                   .value_width = c.value_width,
                   .mini_batch = c.mini_batch,
                   .conv_width = c.conv_width,
                   .momentum = false,
                   .output_norm = c.output_norm,
                   .output_gate = c.output_gate},
                  c.variant == MirasVariant::kYaad ? 1 : 0, width, kName),
      config_(c) {
  if (c.max_step == 0) config_.max_step = 1 / double(c.mini_batch);
  const int64_t H = c.heads, K = shape().key_width, V = shape().value_width;
  register_memory({initial::normal({H, K, V}, first_deviation(c.variant, K))});
  gate_down_ = register_parameter("gate_down", initial::linear(c.gate_rank, width));
  gate_up_ = register_parameter("gate_up", initial::linear(2 * H * V, c.gate_rank));
  const at::Tensor retention = initial::half_life_bias(H).unsqueeze(1).expand({H, V});
  gate_bias_ = register_parameter("gate_bias", at::stack({retention, initial::zeros({H, V})}));
  if (c.variant == MirasVariant::kYaad)
    delta_bias_ = register_parameter("delta_bias", initial::ones({H}) * std::log(std::expm1(1.0)));
}

/// Memora's columns are distributions.
std::vector<at::Tensor> Miras::first_weights() const {
  std::vector<at::Tensor> first = MemoryMixer::first_weights();
  if (config_.variant == MirasVariant::kMemora) first[0] = at::log_softmax(first[0], 1);
  return first;
}

FastWeightArgs Miras::memory(const Heads& heads, const at::Tensor& x) const {
  const at::Tensor low_rank = at::linear(at::linear(x, gate_down_), gate_up_);
  const auto gates = at::sigmoid(delta::gate_typed(low_rank).unflatten(-1, gate_bias_.sizes()) + gate_bias_);
  FastWeightArgs args{
      .q = heads.q,
      .k = heads.k,
      .v = heads.v,
      .memory = {},
      .rule = {.retention = gates.select(2, 0), .step = gates.select(2, 1) * config_.max_step},
      .state = {}};
  switch (config_.variant) {
    case MirasVariant::kMoneta:
      args.memory.loss = InnerLoss::kCube;
      args.memory.projection = Projection::kQuarticNorm;
      break;
    case MirasVariant::kYaad:
      args.memory.loss = config_.huber == HuberForm::kSign ? InnerLoss::kHuberSign : InnerLoss::kHuberNorm;
      args.rule.delta = at::softplus(heads.gates[0] + delta_bias_);
      break;
    case MirasVariant::kMemora:
      args.memory.loss = InnerLoss::kHalfSquare;
      args.memory.projection = Projection::kSoftmax;
      break;
  }
  return args;
}

}  // namespace prism
