#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

struct DeltaNetConfig : DeltaConfig {
  bool negative_eigenvalues = false;
  DeltaNetConfig() { output_gate = false; }
  static constexpr auto fields =
      std::tuple_cat(delta_fields<DeltaNetConfig>(),
                     std::tuple{Field{"negative_eigenvalues", &DeltaNetConfig::negative_eigenvalues, Any{},
                                      "", "step sizes in (0, 2), so that an erase may turn a sign"}});
};

/// DeltaNet (arXiv 2406.06484): S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, o_t = K^-1/2 S_t^T q_t.
/// State a sequence: "S" [H,K,V] and "conv" [2 Hk K + H V, W-1].
class DeltaNet final : public MatrixMixer {
 public:
  using Config = DeltaNetConfig;
  static constexpr auto kName = "delta_net";
  static constexpr auto kSummary = "DeltaNet: delta rule without forgetting, short convolutions";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  DeltaNet(const Config& config, int64_t width);

  bool takes_parts() const override { return true; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;

 private:
  double largest_step_;
};

}  // namespace prism
