#include "prism/mixers/sasrec_block.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "mixers/key_value_cache.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"

namespace prism {
namespace {

constexpr double kLayerNormEps = 1e-8;

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, kLayerNormEps);
}

at::Tensor attention(const at::Tensor& x, const SasrecWeights& w, int64_t heads, const Packing& packing,
                     MixerState* state) {
  const auto qkv = at::linear(x, w.Wqkv, w.bqkv).unflatten(-1, {3, heads, -1}).unbind(2);
  const double scale = 1 / std::sqrt(static_cast<double>(qkv[0].size(-1)));
  return at::linear(attend(qkv[0], qkv[1], qkv[2], scale, packing, state).flatten(-2), w.Wo, w.bo);
}

at::Tensor feed_forward(const at::Tensor& x, const SasrecWeights& w) {
  return at::linear(at::relu(at::linear(x, w.W1, w.b1)), w.W2, w.b2);
}

}  // namespace

at::Tensor sasrec_block(const at::Tensor& x_BTD, const SasrecWeights& w, int64_t heads, NormPlace norm,
                        const Packing& packing, const Dropout& drop, MixerState* state) {
  if (norm == NormPlace::kPre) {
    const at::Tensor normed = layer_norm(x_BTD, w.ln1_w, w.ln1_b);
    const at::Tensor x = dropout_add(x_BTD, attention(normed, w, heads, packing, state), drop.at(0));
    return dropout_add(x, feed_forward(layer_norm(x, w.ln2_w, w.ln2_b), w), drop.at(1));
  }
  const at::Tensor attended = dropout_add(x_BTD, attention(x_BTD, w, heads, packing, state), drop.at(0));
  const at::Tensor x = layer_norm(attended, w.ln1_w, w.ln1_b);
  return layer_norm(dropout_add(x, feed_forward(x, w), drop.at(1)), w.ln2_w, w.ln2_b);
}

SasrecBlock::SasrecBlock(const Config& config, int64_t width) : config_(config), width_(width) {
  if (width % config.heads)
    usage_error("sasrec_block: {} heads do not divide the model width {}", config.heads, width);
  const auto linear = [&](const std::string& name, at::Tensor& weight, at::Tensor& bias, int64_t outputs) {
    weight = register_parameter("W" + name, initial::linear(outputs, width));
    bias = register_parameter("b" + name, initial::uniform({outputs}, width));
  };
  auto& w = weights_;
  w.ln1_w = register_parameter("ln1_w", initial::ones({width}));
  w.ln1_b = register_parameter("ln1_b", initial::zeros({width}));
  linear("qkv", w.Wqkv, w.bqkv, 3 * width);
  linear("o", w.Wo, w.bo, width);
  w.ln2_w = register_parameter("ln2_w", initial::ones({width}));
  w.ln2_b = register_parameter("ln2_b", initial::zeros({width}));
  linear("1", w.W1, w.b1, width);
  linear("2", w.W2, w.b2, width);
}

at::Tensor SasrecBlock::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return sasrec_block(x_BTD, weights_, config_.heads, config_.norm, packing, dropout_now());
}

at::Tensor SasrecBlock::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  at::Tensor y = sasrec_block(x_BTD, weights_, config_.heads, config_.norm, packing, {}, &state);
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor SasrecBlock::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  return prefill(x_BD.unsqueeze(1), Packing::rows(), state).squeeze(1);
}

int64_t SasrecBlock::state_size(int64_t tokens) const { return 2 * tokens * width_; }

}  // namespace prism
