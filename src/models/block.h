#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "prism/mixers/mixer.h"

namespace prism {

/// x + Mixer(RMSNorm(x)), then x + FFN(RMSNorm(x)), FFN(x) = W_2 GELU(W_1 x + b_1) + b_2, with dropout on
/// both branches. A mixer that is a whole block stands alone. `input_conv` > 0 puts a causal convolution of
/// that width, with SiLU, before the mixer; usage error before a whole block.
class Block : public torch::nn::Module {
 public:
  Block(const MixerSpec& spec, int64_t width, int64_t ffn_width, int64_t max_length, int64_t input_conv = 0);

  /// `gaps` as in Mixer::forward_with_gaps.
  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                     const Dropout& drop);
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                     MixerState& state);
  at::Tensor step(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state);
  const std::shared_ptr<Mixer>& mixer() const { return mixer_; }

 private:
  at::Tensor feed_forward(const at::Tensor& x) const;

  std::shared_ptr<Mixer> mixer_;
  bool whole_;
  at::Tensor mixer_norm_, ffn_norm_, ffn_in_weight_, ffn_in_bias_, ffn_out_weight_, ffn_out_bias_;
};

}  // namespace prism
