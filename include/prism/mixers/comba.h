#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

struct CombaConfig : DeltaConfig {
  double correction = 1;
  static constexpr auto fields = std::tuple_cat(
      delta_fields<CombaConfig>(),
      std::tuple{Field{"correction", &CombaConfig::correction, Range{0, 100}, "",
                       "where the learned output correction D starts; small models may prefer 0.02"}});
};

/// Comba (arXiv 2506.02475): S_t = a_t S_{t-1} + b_t k_t (v_t - S_{t-1}^T p_t)^T with the feedback p =
/// sigmoid(d) k read from the state before its decay, o_t = K^-1/2 S_t^T q_t with q corrected to q - D p.
/// State a sequence: "S" [H,K,V] and "conv" [2 Hk K + H V, W-1].
class Comba final : public MatrixMixer {
 public:
  using Config = CombaConfig;
  static constexpr auto kName = "comba";
  static constexpr auto kSummary = "Comba: gated delta rule with scaled state and output feedback";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Comba(const Config& config, int64_t width);

  bool takes_parts() const override { return true; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  /// The output gate is a sigmoid here.
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const override;

 private:
  at::Tensor A_log_, dt_bias_, feedback_, correction_;
};

}  // namespace prism
