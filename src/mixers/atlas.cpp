// ATLAS, arXiv 2505.23735: Omega rule, polynomial features, Newton-Schulz.
#include "prism/mixers/atlas.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"

namespace prism {
namespace {

int64_t feature_count(int64_t width, int64_t degree) {
  int64_t count = 1, power = 1;
  for (int64_t i = 1; i <= degree; ++i) count += power *= width;
  return count;
}

}  // namespace

Atlas::Atlas(const Config& c, int64_t width)
    : MemoryMixer({.heads = c.heads,
                   .key_width = c.key_width,
                   .value_width = c.value_width,
                   .mini_batch = c.mini_batch,
                   .conv_width = c.conv_width,
                   .window = c.window,
                   .momentum = c.momentum,
                   .output_norm = c.output_norm,
                   .output_gate = c.output_gate},
                  c.momentum ? 4 : 3, width, kName),
      config_(c) {
  if (c.max_step == 0) config_.max_step = 1 / double(c.mini_batch * (c.newton_schulz ? 1 : c.window));
  const int64_t H = c.heads, rows = feature_count(shape().key_width, c.degree);
  register_memory({initial::normal({H, rows, shape().value_width}, 0.02)});
  // gamma, eta, alpha, and theta with momentum
  std::vector<at::Tensor> bias{initial::zeros({H}), initial::zeros({H}), initial::half_life_bias(H)};
  if (c.momentum) bias.push_back(initial::zeros({H}));
  gate_bias_ = register_parameter("gate_bias", at::stack(bias));
  coefficients_ = register_parameter("coefficients", initial::ones({c.degree + 1}));
}

at::Tensor Atlas::features(const at::Tensor& x) const {
  std::vector<at::Tensor> scale;
  int64_t count = 1;
  for (int64_t i = 0; i <= config_.degree; ++i, count *= x.size(-1))
    scale.push_back(coefficients_[i].expand({count}));
  return polynomial_features(delta::gate_typed(x), config_.degree) * at::cat(scale);
}

FastWeightArgs Atlas::memory(const Heads& heads, const at::Tensor& /*x*/) const {
  const auto gate = [&](int64_t i) { return at::sigmoid(heads.gates[i] + gate_bias_[i]); };
  FastWeightArgs args{.q = features(heads.q),
                      .k = features(heads.k),
                      .v = delta::gate_typed(heads.v),
                      .memory = {},
                      .rule = {.gradient_weight = gate(0),
                               .retention = gate(2),
                               .step = gate(1) * config_.max_step,
                               .window = config_.window,
                               .newton_schulz = config_.newton_schulz},
                      .state = {}};
  if (config_.momentum) args.rule.momentum = gate(3);
  return args;
}

}  // namespace prism
