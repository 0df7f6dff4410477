#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/fast_weight_mixer.h"

namespace prism {

struct AtlasConfig {
  int64_t heads = 2, key_width = 8, value_width = 0, degree = 2, window = 4, mini_batch = 16, conv_width = 4;
  double max_step = 0;
  bool newton_schulz = true, momentum = true, output_norm = true, output_gate = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &AtlasConfig::heads, Range{1, 4096}, "", "heads H, each with its own memory"},
      Field{"key_width", &AtlasConfig::key_width, Range{0, 65536}, "",
            "key channels K a head, of which phi makes sum_i K^i; 0 means model width / heads"},
      Field{"value_width", &AtlasConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"degree", &AtlasConfig::degree, Range{1, 4}, "", "degree p of the polynomial features phi"},
      Field{"window", &AtlasConfig::window, Range{1, 4096}, "tokens",
            "last tokens c that each step learns from"},
      Field{"mini_batch", &AtlasConfig::mini_batch, Range{1, 65536}, "tokens",
            "tokens whose inner gradients are taken at the same weights"},
      Field{"max_step", &AtlasConfig::max_step, Range{0.0, 100.0}, "",
            "largest inner step eta; 0 means 1 / mini_batch, without newton_schulz 1 / (mini_batch window)"},
      Field{"conv_width", &AtlasConfig::conv_width, Range{0, 64}, "tokens",
            "width of the causal convolution on q, k and v; 0 means none"},
      Field{"newton_schulz", &AtlasConfig::newton_schulz, Any{}, "",
            "steps along the orthogonalised momentum (Muon)"},
      Field{"momentum", &AtlasConfig::momentum, Any{}, "",
            "S carries over; without it S is the window's gradient"},
      Field{"output_norm", &AtlasConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &AtlasConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// ATLAS (arXiv 2505.23735, main text): S_t = theta_t S_{t-1} + sum over the last c tokens of
/// gamma_i grad |phi(k_i) M - v_i|^2, M_t = alpha_t M_{t-1} - eta_t NewtonSchulz(S_t), o_t = phi(q_t) M_t,
/// the gradient at the start of the mini-batch. Without momentum and Newton-Schulz: OmegaNet. State as of a
/// MemoryMixer: W1 [H,F,V], F = sum_i K^i.
class Atlas final : public MemoryMixer {
 public:
  using Config = AtlasConfig;
  static constexpr auto kName = "atlas";
  static constexpr auto kSummary =
      "ATLAS: a memory that learns a window of tokens at a time, along Muon's direction";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  Atlas(const Config& config, int64_t width);

 private:
  FastWeightArgs memory(const Heads& heads, const at::Tensor& x_BTD) const override;
  at::Tensor features(const at::Tensor& x) const;

  Config config_;
  at::Tensor gate_bias_, coefficients_;
};

}  // namespace prism
