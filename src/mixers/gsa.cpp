// Gated slot attention, arXiv 2409.07146; layer as in flash-linear-attention's layers/gsa.py.
#include "prism/mixers/gsa.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/gate_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {

Gsa::Gsa(const Config& config, int64_t width) : heads_(config.heads), gate_divisor_(config.gate_divisor) {
  const auto resolved =
      delta::resolved_heads({config.heads, 0, config.key_width, config.value_width}, width, kName);
  key_width_ = resolved.key_width;
  value_width_ = resolved.value_width;
  slots_ = config.slots ? config.slots : key_width_;
  in_weight_ = register_parameter("in_weight",
                                  initial::linear(heads_ * (2 * key_width_ + value_width_ + slots_), width));
  norm_weight_ = register_parameter("norm_weight", initial::ones({heads_ * value_width_}));
  out_weight_ = register_parameter("out_weight", initial::linear(width, heads_ * value_width_));
}

at::Tensor Gsa::mix(const at::Tensor& x, const TokenStream& stream) {
  const int64_t key = heads_ * key_width_, value = heads_ * value_width_;
  const auto parts = at::linear(x, in_weight_).split_with_sizes({2 * key + value, heads_ * slots_}, -1);
  const auto qkv = at::silu(parts[0]).split_with_sizes({key, key, value}, -1);
  const auto by_head = [&](const at::Tensor& y) { return y.unflatten(-1, {heads_, -1}); };
  const at::Tensor q = by_head(qkv[0]), k = by_head(qkv[1]), v = by_head(qkv[2]);
  const at::Tensor g = at::log_sigmoid(delta::gate_typed(by_head(parts[1]))) / gate_divisor_;
  const at::Tensor s = at::expm1(g).neg().to(q.scalar_type());  // 1 - a
  VectorGateArgs slots{.q = q, .k = s, .w = k, .g = g, .scale = 1.0};
  slots.read_values = true;
  const at::Tensor weights =
      at::softmax(delta::gate_typed(recur(stream, slots, "K")), -1).to(q.scalar_type());
  const at::Tensor o = recur(stream, {.q = weights, .k = s, .w = v, .g = g, .scale = 1.0}, "V");
  constexpr double kNormEps = 1e-5;
  return at::linear(rms_norm(at::silu(o.flatten(-2)), norm_weight_, kNormEps), out_weight_);
}

std::vector<StateTensor> Gsa::state_tensors() const {
  return {{"K", {heads_, slots_, key_width_}}, {"V", {heads_, slots_, value_width_}}};
}

}  // namespace prism
