#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/kda.h"

namespace prism {

struct PkdaConfig : KdaConfig {
  double squash = 1.5;
  static constexpr auto fields =
      std::tuple_cat(kda_fields<PkdaConfig>(),
                     std::tuple{Field{"squash", &PkdaConfig::squash, Range{1, 2}, "",
                                      "x: the preconditioner lies between 1/x and x; 1 turns it off"}});
};

/// Preconditioned Kimi Delta Attention (PKDA, arXiv 2604.21100): KDA that writes with P_t k_t and erases what
/// k_t reads, S' = Diag(a_t) S_{t-1}, S_t = S' + b_t (P_t k_t) (v_t - S'^T k_t)^T, with the diagonal
/// preconditioner P_t of ops/precondition.h. State a sequence: "S" [H,K,V], "A" [Hk,K] and "conv" [2 Hk K + H
/// V, W-1].
class Pkda final : public Kda {
 public:
  using Config = PkdaConfig;
  static constexpr auto kName = "pkda";
  static constexpr auto kSummary =
      "Preconditioned KDA (PKDA): KDA with writes scaled by the keys' past curvature";

  /// Usage errors where the settings do not fit each other or the width.
  Pkda(const Config& config, int64_t width);

  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  std::vector<StateTensor> state_tensors() const override;

 private:
  double squash_;
  at::Tensor curvature_A_log_, curvature_dt_bias_, log_scale_;
};

}  // namespace prism
