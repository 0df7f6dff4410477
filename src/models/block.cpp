#include "models/block.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/input_conv.h"
#include "mixers/parameters.h"
#include "mixers/threaded_linear.h"
#include "models/checkpointed.h"
#include "prism/core/error.h"
#include "prism/ops/norm.h"
#include "prism/ops/swiglu.h"

namespace prism {

Block::Block(const MixerSpec& spec, int64_t width, int64_t ffn_width, int64_t max_length, int64_t input_conv,
             FeedForward feed_forward)
    : whole_(spec.is_whole_block()), kind_(feed_forward) {
  if (whole_ && input_conv > 0)
    usage_error("model: input_conv = {} does not go before a whole block", input_conv);
  std::shared_ptr<Mixer> mixer = spec.build(width, max_length);
  if (input_conv > 0) mixer = std::make_shared<InputConv>(std::move(mixer), width, input_conv);
  mixer_ = register_module("mixer", std::move(mixer));
  if (whole_) return;
  mixer_norm_ = register_parameter("mixer_norm", initial::ones({width}));
  ffn_norm_ = register_parameter("ffn_norm", initial::ones({width}));
  register_feed_forward(width, ffn_width);
}

void Block::register_feed_forward(int64_t width, int64_t ffn_width) {
  const bool gelu = kind_ == FeedForward::kGelu;
  const int64_t inner = gelu ? ffn_width : 2 * ffn_width;
  ffn_in_weight_ = register_parameter("ffn_in_weight", initial::linear(inner, width));
  if (gelu) ffn_in_bias_ = register_parameter("ffn_in_bias", initial::uniform({ffn_width}, width));
  ffn_out_weight_ = register_parameter("ffn_out_weight", initial::linear(width, ffn_width));
  if (gelu) ffn_out_bias_ = register_parameter("ffn_out_bias", initial::uniform({width}, ffn_width));
}

at::Tensor Block::feed_forward(const at::Tensor& x) const {
  if (kind_ == FeedForward::kSwiGlu)
    return threaded_linear(swiglu(threaded_linear(x, ffn_in_weight_)), ffn_out_weight_);
  return at::linear(at::gelu(at::linear(x, ffn_in_weight_, ffn_in_bias_)), ffn_out_weight_, ffn_out_bias_);
}

at::Tensor Block::forward(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                          const Dropout& drop) {
  if (whole_) {
    if (is_training()) mixer_->set_dropout(drop);  // evaluation writes nothing: threads may share a model
    return mixer_->forward_with_gaps(x_BTD, packing, gaps);
  }
  const at::Tensor mixed = mixer_->forward_with_gaps(rms_norm(x_BTD, mixer_norm_), packing, gaps);
  const at::Tensor x = dropout_add(x_BTD, mixed, drop.at(0));
  return dropout_add(x, feed_forward(rms_norm(x, ffn_norm_)), drop.at(1));
}

at::Tensor Block::forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks) {
  if (whole_) return mixer_->forward_in_parts(x_BTD, packing, ranks);
  const at::Tensor x = x_BTD + mixer_->forward_in_parts(rms_norm(x_BTD, mixer_norm_), packing, ranks);
  return x + feed_forward(rms_norm(x, ffn_norm_));
}

/// The mixer's auxiliary loss is a second output: it has gradients too.
at::Tensor Block::checkpointed_call(const at::Tensor& x_BTD,
                                    const std::function<at::Tensor(const at::Tensor&)>& work) {
  const auto with_loss = [work, this](const at::Tensor& x) {
    const at::Tensor before = mixer_->exchange_auxiliary_loss({});
    std::vector<at::Tensor> outputs{work(x)};
    const at::Tensor own = mixer_->exchange_auxiliary_loss(before);
    if (own.defined()) outputs.push_back(own);
    return outputs;
  };
  const std::vector<at::Tensor> outputs = checkpointed(with_loss, x_BTD, parameters());
  mixer_->exchange_auxiliary_loss(outputs.size() > 1 ? outputs[1] : at::Tensor());
  return outputs[0];
}

at::Tensor Block::prefill(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                          MixerState& state) {
  if (whole_) return mixer_->prefill_with_gaps(x_BTD, packing, gaps, state);
  const at::Tensor x = x_BTD + mixer_->prefill_with_gaps(rms_norm(x_BTD, mixer_norm_), packing, gaps, state);
  return x + feed_forward(rms_norm(x, ffn_norm_));
}

at::Tensor Block::step(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state) {
  if (whole_) return mixer_->step_with_gaps(x_BD, gaps, state);
  const at::Tensor x = x_BD + mixer_->step_with_gaps(rms_norm(x_BD, mixer_norm_), gaps, state);
  return x + feed_forward(rms_norm(x, ffn_norm_));
}

}  // namespace prism
