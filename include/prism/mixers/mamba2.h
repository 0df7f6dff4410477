#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

struct Mamba2Config {
  int64_t heads = 2, groups = 1, state_width = 128, expand = 2, conv_width = 4;
  static constexpr auto fields = std::tuple{
      Field{"heads", &Mamba2Config::heads, Range{1, 4096}, "", "heads H; divides expand x model width"},
      Field{"groups", &Mamba2Config::groups, Range{1, 4096}, "",
            "groups of heads that share B and C; divides heads"},
      Field{"state_width", &Mamba2Config::state_width, Range{1, 65536}, "", "state channels N a head"},
      Field{"expand", &Mamba2Config::expand, Range{1, 64}, "", "inner width in units of the model width"},
      Field{"conv_width", &Mamba2Config::conv_width, Range{1, 64}, "tokens",
            "width of the causal convolution on x, B and C"}};
};

/// Mamba-2 (arXiv 2405.21060): S_t = exp(dt_t A) S_{t-1} + B_t (dt_t x_t)^T, y_t = S_t^T C_t + D x_t. State a
/// sequence: "S" [H,N,P] and "conv" [2 G N + H P, W-1], P = expand D / H.
class Mamba2 final : public MatrixMixer {
 public:
  using Config = Mamba2Config;
  static constexpr auto kName = "mamba2";
  static constexpr auto kSummary = "Mamba-2: state space dual with a scalar decay a head";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Mamba2(const Config& config, int64_t width);

  bool takes_parts() const override { return true; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  /// RMSNorm over each group of y SiLU(z): the gate comes before the norm.
  at::Tensor output(const at::Tensor& y, const at::Tensor& x) const override;

 private:
  at::Tensor A_log_, dt_bias_, skip_;
};

}  // namespace prism
