#include "models/block.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {

Block::Block(const MixerSpec& spec, int64_t width, int64_t ffn_width) : whole_(spec.is_whole_block()) {
  mixer_ = register_module("mixer", spec.build(width));
  if (whole_) return;
  mixer_norm_ = register_parameter("mixer_norm", initial::ones({width}));
  ffn_norm_ = register_parameter("ffn_norm", initial::ones({width}));
  ffn_in_weight_ = register_parameter("ffn_in_weight", initial::linear(ffn_width, width));
  ffn_in_bias_ = register_parameter("ffn_in_bias", initial::uniform({ffn_width}, width));
  ffn_out_weight_ = register_parameter("ffn_out_weight", initial::linear(width, ffn_width));
  ffn_out_bias_ = register_parameter("ffn_out_bias", initial::uniform({width}, ffn_width));
}

at::Tensor Block::feed_forward(const at::Tensor& x) const {
  return at::linear(at::gelu(at::linear(x, ffn_in_weight_, ffn_in_bias_)), ffn_out_weight_, ffn_out_bias_);
}

at::Tensor Block::forward(const at::Tensor& x_BTD, const Packing& packing, const Dropout& drop) {
  if (whole_) {
    if (is_training()) mixer_->set_dropout(drop);  // evaluation writes nothing: threads may share a model
    return mixer_->forward(x_BTD, packing);
  }
  const at::Tensor mixed = mixer_->forward(rms_norm(x_BTD, mixer_norm_), packing);
  const at::Tensor x = dropout_add(x_BTD, mixed, drop.at(0));
  return dropout_add(x, feed_forward(rms_norm(x, ffn_norm_)), drop.at(1));
}

at::Tensor Block::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  if (whole_) return mixer_->prefill(x_BTD, packing, state);
  const at::Tensor x = x_BTD + mixer_->prefill(rms_norm(x_BTD, mixer_norm_), packing, state);
  return x + feed_forward(rms_norm(x, ffn_norm_));
}

at::Tensor Block::step(const at::Tensor& x_BD, MixerState& state) {
  if (whole_) return mixer_->step(x_BD, state);
  const at::Tensor x = x_BD + mixer_->step(rms_norm(x_BD, mixer_norm_), state);
  return x + feed_forward(rms_norm(x, ffn_norm_));
}

}  // namespace prism
