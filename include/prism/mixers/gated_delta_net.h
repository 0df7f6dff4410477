#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism {

struct GatedDeltaNetConfig {
  int64_t heads = 2, key_heads = 0, key_width = 0, value_width = 0, conv_width = 4;
  bool output_norm = true, output_gate = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &GatedDeltaNetConfig::heads, Range{1, 4096}, "", "value heads H"},
      Field{"key_heads", &GatedDeltaNetConfig::key_heads, Range{0, 4096}, "",
            "heads of queries and keys; divides heads; 0 means as many"},
      Field{"key_width", &GatedDeltaNetConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means model width / heads"},
      Field{"value_width", &GatedDeltaNetConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"conv_width", &GatedDeltaNetConfig::conv_width, Range{1, 64}, "tokens",
            "width of the causal convolution on q, k and v"},
      Field{"output_norm", &GatedDeltaNetConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &GatedDeltaNetConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// Gated DeltaNet (arXiv 2412.06464): S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, o_t = K^-1/2
/// S_t^T q_t. State a sequence: "S" [H,K,V] and "conv" [2 Hk K + H V, W-1].
class GatedDeltaNet final : public Mixer {
 public:
  using Config = GatedDeltaNetConfig;
  static constexpr auto kName = "gated_delta_net";
  static constexpr auto kSummary =
      "Gated DeltaNet: delta rule with a scalar forget gate and short convolutions";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  GatedDeltaNet(const Config& config, int64_t width);

  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  /// What the operation needs of each token; leading dimensions [B,T] or [B].
  struct Token {
    at::Tensor q, k, w, b, g;
  };
  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state);
  template <class Convolve>
  Token token(const at::Tensor& x, const Convolve& convolve) const;
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const;
  void start(MixerState& state, int64_t sequences, const at::Tensor& x) const;
  int64_t conv_channels() const;

  Config config_;
  at::Tensor conv_weight_, in_weight_, A_log_, dt_bias_, gate_weight_, norm_weight_, out_weight_;
};

}  // namespace prism
