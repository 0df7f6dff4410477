// Titans' neural long-term memory as a layer, arXiv 2501.00663.
#include "prism/mixers/titans.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/parameters.h"
#include "prism/core/error.h"

namespace prism {
namespace {

std::vector<at::Tensor> new_memory(const TitansConfig& c, int64_t K, int64_t V) {
  if (c.memory == TitansMemory::kMatrix) return {initial::normal({c.heads, K, V}, 0.02)};
  const int64_t hidden = c.expansion * K;
  return {initial::uniform({c.heads, K, hidden}, K), initial::uniform({c.heads, hidden, V}, hidden)};
}

}  // namespace

Titans::Titans(const Config& c, int64_t width)
    : MemoryMixer({.heads = c.heads,
                   .key_width = c.key_width,
                   .value_width = c.value_width,
                   .mini_batch = c.mini_batch,
                   .conv_width = c.conv_width,
                   .momentum = true,
                   .output_norm = c.output_norm,
                   .output_gate = c.output_gate},
                  3, width, kName),
      max_step_(c.max_step > 0 ? c.max_step : 1 / double(c.mini_batch)) {
  const int64_t H = c.heads, K = shape().key_width, V = shape().value_width;
  register_memory(new_memory(c, K, V));
  // theta, eta, 1 - alpha
  gate_bias_ = register_parameter(
      "gate_bias", at::stack({initial::zeros({H}), initial::zeros({H}), initial::half_life_bias(H)}));
  if (!c.residual_norm) return;
  if (K != V) usage_error("titans: residual_norm needs key_width {} to equal value_width {}", K, V);
  memory_norm_weight_ = register_parameter("memory_norm_weight", initial::ones({H, V}));
  memory_norm_bias_ = register_parameter("memory_norm_bias", initial::zeros({H, V}));
}

FastWeightArgs Titans::memory(const Heads& heads, const at::Tensor& /*x*/) const {
  const auto gate = [&](int64_t i) { return at::sigmoid(heads.gates[i] + gate_bias_[i]); };
  return {.q = heads.q,
          .k = heads.k,
          .v = heads.v,
          .memory = {.norm_weight = memory_norm_weight_, .norm_bias = memory_norm_bias_},
          .rule = {.gradient_weight = gate(0) * max_step_, .momentum = gate(1), .retention = gate(2)},
          .state = {}};
}

}  // namespace prism
