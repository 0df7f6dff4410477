#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>

#include "prism/mixers/mixer.h"

namespace prism {

/// FFN(x) = W_2 GELU(W_1 x + b_1) + b_2, or W_2 (SiLU(W_1 x) * W_3 x) with W_1 and W_3 in one matrix.
enum class FeedForward { kGelu, kSwiGlu };

/// x + Mixer(RMSNorm(x)), then x + FFN(RMSNorm(x)), with dropout on both branches. A mixer that is a whole
/// block stands alone. `input_conv` > 0 puts a causal convolution of
/// that width, with SiLU, before the mixer; usage error before a whole block.
class Block : public torch::nn::Module {
 public:
  Block(const MixerSpec& spec, int64_t width, int64_t ffn_width, int64_t max_length, int64_t input_conv = 0,
        FeedForward feed_forward = FeedForward::kGelu);

  /// `gaps` as in Mixer::forward_with_gaps.
  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                     const Dropout& drop);
  /// forward, without dropout, of sequences that are cut over ranks (Mixer::forward_in_parts).
  at::Tensor forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks);
  /// work(x), which is one of the two above, keeping only x for backward, which calls it again: this block
  /// must live until then.
  at::Tensor checkpointed_call(const at::Tensor& x_BTD,
                               const std::function<at::Tensor(const at::Tensor&)>& work);
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                     MixerState& state);
  at::Tensor step(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state);
  const std::shared_ptr<Mixer>& mixer() const { return mixer_; }

 private:
  void register_feed_forward(int64_t width, int64_t ffn_width);
  at::Tensor feed_forward(const at::Tensor& x) const;

  std::shared_ptr<Mixer> mixer_;
  bool whole_;
  FeedForward kind_;
  at::Tensor mixer_norm_, ffn_norm_, ffn_in_weight_, ffn_in_bias_, ffn_out_weight_, ffn_out_bias_;
};

}  // namespace prism
