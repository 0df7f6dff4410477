#include "prism/mixers/softmax_attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "mixers/key_value_cache.h"
#include "mixers/parameters.h"
#include "mixers/threaded_linear.h"
#include "prism/core/error.h"
#include "prism/ops/attention.h"

namespace prism {
namespace {

SoftmaxAttentionConfig resolved(SoftmaxAttentionConfig c, int64_t width) {
  if (!c.key_heads) c.key_heads = c.heads;
  if (c.heads % c.key_heads)
    usage_error("softmax_attention: key_heads {} does not divide heads {}", c.key_heads, c.heads);
  if (!c.head_width) {
    if (width % c.heads)
      usage_error("softmax_attention: {} heads do not divide the model width {}; set head_width", c.heads,
                  width);
    c.head_width = width / c.heads;
  }
  if (c.head_width % 2)
    usage_error("softmax_attention: rotary positions need an even head_width, not {}", c.head_width);
  return c;
}

}  // namespace

SoftmaxAttention::SoftmaxAttention(const Config& config, int64_t width) : config_(resolved(config, width)) {
  const int64_t rows = (config_.heads + 2 * config_.key_heads) * config_.head_width;
  in_weight_ = register_parameter("in_weight", initial::linear(rows, width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, config_.heads * config_.head_width));
}

at::Tensor SoftmaxAttention::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mix(x_BTD, packing, nullptr);
}

at::Tensor SoftmaxAttention::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  at::Tensor y = mix(x_BTD, packing, &state);
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor SoftmaxAttention::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  return prefill(x_BD.unsqueeze(1), Packing::rows(), state).squeeze(1);
}

at::Tensor SoftmaxAttention::mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) {
  const auto& c = config_;
  const at::Tensor heads = threaded_linear(x_BTD, in_weight_).unflatten(-1, {-1, c.head_width});
  const auto qkv = heads.split_with_sizes({c.heads, c.key_heads, c.key_heads}, 2);
  const at::Tensor positions =
      token_positions(x_BTD, packing, state ? state->lengths : std::vector<int64_t>{});
  const at::Tensor q = rope(qkv[0], positions, c.rope_theta), k = rope(qkv[1], positions, c.rope_theta);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_width));
  return threaded_linear(attend(q, k, qkv[2], scale, packing, state).flatten(-2), out_weight_);
}

int64_t SoftmaxAttention::state_size(int64_t tokens) const {
  return 2 * tokens * config_.key_heads * config_.head_width;
}

}  // namespace prism
