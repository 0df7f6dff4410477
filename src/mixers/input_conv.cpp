#include "mixers/input_conv.h"

#include <ATen/ops/zeros.h>

#include "mixers/parameters.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

constexpr auto kHistory = "input_conv";

}  // namespace

InputConv::InputConv(std::shared_ptr<Mixer> mixer, int64_t width, int64_t conv_width) : width_(width) {
  weight_ = register_parameter("input_conv_weight", initial::uniform({width, conv_width}, conv_width));
  bias_ = register_parameter("input_conv_bias", initial::uniform({width}, conv_width));
  mixer_ = register_module("inner", std::move(mixer));
}

at::Tensor InputConv::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mixer_->forward(short_conv(x_BTD, weight_, bias_, packing), packing);
}

/// The inputs before the next token, taken out of the state: the mixer inside sees only its own tensors.
at::Tensor InputConv::take_history(MixerState& state, int64_t sequences, const at::Tensor& x) const {
  if (state.empty()) return at::zeros({sequences, width_, weight_.size(1) - 1}, x.options());
  auto taken = state.tensors.extract(kHistory);
  return taken.mapped();
}

at::Tensor InputConv::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  const at::Tensor history = take_history(state, packing.sequences(x_BTD), x_BTD);
  at::Tensor y = mixer_->prefill(short_conv(x_BTD, weight_, bias_, packing, history), packing, state);
  state.tensors[kHistory] = short_conv_history(x_BTD, weight_.size(1), packing, history);
  return y;
}

at::Tensor InputConv::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  const at::Tensor history = take_history(state, x_BD.size(0), x_BD);
  at::Tensor y = mixer_->step(short_conv_step(x_BD, weight_, bias_, history), state);
  state.tensors[kHistory] = history;
  return y;
}

int64_t InputConv::state_size(int64_t tokens) const {
  return mixer_->state_size(tokens) + width_ * (weight_.size(1) - 1);
}

}  // namespace prism
