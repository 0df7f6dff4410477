#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

struct GlaConfig {
  int64_t heads = 2, key_heads = 0, key_width = 0, value_width = 0, conv_width = 0, gate_rank = 16;
  double gate_divisor = 16;
  bool output_norm = true, output_gate = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &GlaConfig::heads, Range{1, 4096}, "", "value heads H"},
      Field{"key_heads", &GlaConfig::key_heads, Range{0, 4096}, "",
            "heads of queries and keys; divides heads; 0 means as many"},
      Field{"key_width", &GlaConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means half of model width / heads"},
      Field{"value_width", &GlaConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"conv_width", &GlaConfig::conv_width, Range{0, 64}, "tokens",
            "width of a causal convolution on q, k and v; 0 means none"},
      Field{"gate_rank", &GlaConfig::gate_rank, Range{1, 4096}, "", "rank of the gate's projection"},
      Field{"gate_divisor", &GlaConfig::gate_divisor, Range{1, 1e6}, "",
            "tau: the log gate is log sigmoid(.) / tau"},
      Field{"output_norm", &GlaConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &GlaConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// Gated linear attention (arXiv 2312.06635): S_t = Diag(a_t) S_{t-1} + k_t v_t^T, o_t = K^-1/2 S_t^T q_t,
/// with a gate a key channel. State a sequence: "S" [H,K,V], and "conv" [2 Hk K + H V, W-1] with a
/// convolution.
class Gla final : public MatrixMixer {
 public:
  using Config = GlaConfig;
  static constexpr auto kName = "gla";
  static constexpr auto kSummary = "Gated linear attention (GLA): a forget gate for every key channel";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Gla(const Config& config, int64_t width);

  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const override;

 private:
  static Shape resolved(const Config& config, int64_t width);

  double gate_divisor_;
  at::Tensor gate_up_weight_, gate_up_bias_;
};

}  // namespace prism
