#pragma once
#include <cstdint>
#include <memory>

#include "prism/mixers/mixer.h"

namespace prism {

/// y = Mixer(SiLU(ShortConv(x))): PRISM's convolution (eq. 9) before any mixer, so that a comparison can tell
/// what the convolution brings. State: the mixer's, and "input_conv" [D,W-1] a sequence.
class InputConv final : public Mixer {
 public:
  InputConv(std::shared_ptr<Mixer> mixer, int64_t width, int64_t conv_width);

  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  at::Tensor take_history(MixerState& state, int64_t sequences, const at::Tensor& x) const;

  int64_t width_;
  std::shared_ptr<Mixer> mixer_;
  at::Tensor weight_, bias_;
};

}  // namespace prism
