#pragma once
#include <cstdint>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/fast_weight_mixer.h"

namespace prism {

struct TttConfig {
  int64_t heads = 2, head_width = 0, mini_batch = 16, conv_width = 0;
  double base_lr = 0, rope_theta = 10000;
  bool output_gate = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &TttConfig::heads, Range{1, 4096}, "", "heads H, each with its own inner model"},
      Field{"head_width", &TttConfig::head_width, Range{0, 65536}, "",
            "channels K a head, even; 0 means model width / heads"},
      Field{"mini_batch", &TttConfig::mini_batch, Range{1, 65536}, "tokens",
            "tokens b whose inner gradients are taken at the same weights"},
      Field{"conv_width", &TttConfig::conv_width, Range{0, 64}, "tokens",
            "width of a causal convolution with SiLU on q, k and v; 0 means none"},
      Field{"base_lr", &TttConfig::base_lr, Range{0.0, 100.0}, "",
            "largest inner learning rate, times K; 0 means the paper's: 1 for TTT-Linear, 0.1 for TTT-MLP"},
      Field{"rope_theta", &TttConfig::rope_theta, Range{1.0, 1e12}, "", "base of the rotary positions"},
      Field{"output_gate", &TttConfig::output_gate, Any{}, "", "output times GELU(W_g x)"}};
};

/// TTT (arXiv 2407.04620): the state is a model f that takes gradient steps on (1/2)|k_t + LN(f(k_t)) -
/// v_t|^2; o_t = q_t + LN(f_t(q_t)), f_t = f - idx_t sum_j lr_j grad_j over its mini-batch so far, f from its
/// start. State a sequence: "start1" and "S1" [H,K+1,K], the weights (last row: bias) at the start of the
/// mini-batch and its weighted gradients so far; with two layers [H,K+1,4K] and "start2", "S2" [H,4K+1,K].
/// With a convolution "conv" [3 H K, W-1].
class Ttt : public FastWeightMixer {
 public:
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  int64_t state_size(int64_t tokens) const override;

 protected:
  /// Usage errors, under the mixer's name, where the settings do not fit the width.
  Ttt(const TttConfig& config, int64_t width, int64_t layers, const char* name);

 private:
  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) override;
  FastWeightArgs arguments(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) const;
  at::Tensor output(const at::Tensor& o_BTHK, const at::Tensor& x_BTD) const;
  int64_t channels() const { return config_.heads * config_.head_width; }

  TttConfig config_;
  std::vector<at::Tensor> W_;
  at::Tensor in_weight_, lr_weight_, lr_bias_, place_, norm_weight_, norm_bias_, out_norm_weight_,
      out_norm_bias_, gate_weight_, out_weight_;
};

class TttLinear final : public Ttt {
 public:
  using Config = TttConfig;
  static constexpr auto kName = "ttt_linear";
  static constexpr auto kSummary = "TTT-Linear: the state is a linear model trained on the sequence";
  TttLinear(const Config& config, int64_t width) : Ttt(config, width, 1, kName) {}
};

class TttMlp final : public Ttt {
 public:
  using Config = TttConfig;
  static constexpr auto kName = "ttt_mlp";
  static constexpr auto kSummary = "TTT-MLP: the state is a two-layer perceptron trained on the sequence";
  TttMlp(const Config& config, int64_t width) : Ttt(config, width, 2, kName) {}
};

}  // namespace prism
