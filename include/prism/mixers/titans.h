#pragma once
#include <array>
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/fast_weight_mixer.h"

namespace prism {

enum class TitansMemory { kMatrix, kMlp };
template <>
struct EnumNames<TitansMemory> {
  static constexpr std::array names{"matrix", "mlp"};
};

struct TitansConfig {
  int64_t heads = 2, key_width = 0, value_width = 0, expansion = 2, mini_batch = 16, conv_width = 4;
  double max_step = 0;
  TitansMemory memory = TitansMemory::kMatrix;
  bool residual_norm = false, output_norm = true, output_gate = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &TitansConfig::heads, Range{1, 4096}, "", "heads H, each with its own memory"},
      Field{"key_width", &TitansConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means model width / heads"},
      Field{"value_width", &TitansConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"memory", &TitansConfig::memory, Any{}, "", "the memory M: a matrix, or GELU(x W_1) W_2"},
      Field{"expansion", &TitansConfig::expansion, Range{1, 64}, "", "hidden channels of the mlp, times K"},
      Field{"mini_batch", &TitansConfig::mini_batch, Range{1, 65536}, "tokens",
            "tokens whose inner gradients are taken at the same weights"},
      Field{"max_step", &TitansConfig::max_step, Range{0.0, 100.0}, "",
            "largest inner step theta; 0 means 1 / mini_batch, which keeps equal keys stable"},
      Field{"conv_width", &TitansConfig::conv_width, Range{0, 64}, "tokens",
            "width of the causal convolution on q, k and v; 0 means none"},
      Field{"residual_norm", &TitansConfig::residual_norm, Any{}, "",
            "M(x) = x + LayerNorm(.), as in TTT; needs equal widths"},
      Field{"output_norm", &TitansConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &TitansConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// Titans' long-term memory (arXiv 2501.00663): S_t = eta_t S_{t-1} - theta_t grad |M(k_t) - v_t|^2,
/// M_t = (1 - alpha_t) M_{t-1} + S_t, o_t = M_t(q_t), the gradient at the start of the mini-batch.
/// State as of a MemoryMixer: W1 [H,K,V], or with an mlp W1 [H,K,E K] and W2 [H,E K,V]; "S" here is -S_t.
class Titans final : public MemoryMixer {
 public:
  using Config = TitansConfig;
  static constexpr auto kName = "titans";
  static constexpr auto kSummary = "Titans: a memory trained on the sequence, with momentum and forgetting";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Titans(const Config& config, int64_t width);

 private:
  FastWeightArgs memory(const Heads& heads, const at::Tensor& x_BTD) const override;

  double max_step_;
  at::Tensor gate_bias_, memory_norm_weight_, memory_norm_bias_;
};

}  // namespace prism
