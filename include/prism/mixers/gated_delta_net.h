#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

struct GatedDeltaNetConfig : DeltaConfig {
  bool negative_eigenvalues = false;
  double norm_eps = 1e-6;
  static constexpr auto fields =
      std::tuple_cat(delta_fields<GatedDeltaNetConfig>(),
                     std::tuple{Field{"negative_eigenvalues", &GatedDeltaNetConfig::negative_eigenvalues,
                                      Any{}, "", "step sizes in (0, 2), so that an erase may turn a sign"},
                                Field{"norm_eps", &GatedDeltaNetConfig::norm_eps, Range{1e-12, 1}, "",
                                      "added to the mean square in the norm of the output"}});
};

/// Gated DeltaNet (arXiv 2412.06464): S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, o_t = K^-1/2
/// S_t^T q_t. State a sequence: "S" [H,K,V] and "conv" [2 Hk K + H V, W-1].
class GatedDeltaNet final : public MatrixMixer {
 public:
  using Config = GatedDeltaNetConfig;
  static constexpr auto kName = "gated_delta_net";
  static constexpr auto kSummary =
      "Gated DeltaNet: delta rule with a scalar forget gate and short convolutions";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  GatedDeltaNet(const Config& config, int64_t width);

  bool takes_parts() const override { return true; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const override;

 private:
  double largest_step_, norm_eps_;
  at::Tensor A_log_, dt_bias_;
};

}  // namespace prism
