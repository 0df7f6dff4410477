#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

enum class ForgetGate { kScalar, kNone };
template <>
struct EnumNames<ForgetGate> {
  static constexpr std::array names{"scalar", "none"};
};

struct PreconditionedDeltaNetConfig : DeltaConfig {
  ForgetGate gate = ForgetGate::kScalar;
  double squash = 1.5;
  static constexpr auto fields = std::tuple_cat(
      delta_fields<PreconditionedDeltaNetConfig>(),
      std::tuple{Field{"gate", &PreconditionedDeltaNetConfig::gate, Any{}, "",
                       "forget gate: scalar (PGDN, over Gated DeltaNet) or none (PDN, over DeltaNet)"},
                 Field{"squash", &PreconditionedDeltaNetConfig::squash, Range{1, 2}, "",
                       "x: the preconditioner lies between 1/x and x; 1 turns it off"}});
};

/// Preconditioned (Gated) DeltaNet (arXiv 2604.21100): S' = a_t S_{t-1}, S_t = S' + b_t (P_t k_t) (v_t - S'^T
/// k_t)^T, o_t = K^-1/2 S_t^T q_t, with the diagonal preconditioner P_t of ops/precondition.h. State a
/// sequence: "S" [H,K,V], "A" [Hk,K] and "conv" [2 Hk K + H V, W-1].
class PreconditionedDeltaNet final : public MatrixMixer {
 public:
  using Config = PreconditionedDeltaNetConfig;
  static constexpr auto kName = "preconditioned_delta_net";
  static constexpr auto kSummary =
      "Preconditioned DeltaNet (PDN, PGDN): writes scaled by the keys' past curvature";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  PreconditionedDeltaNet(const Config& config, int64_t width);

  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  std::vector<StateTensor> state_tensors() const override;

 private:
  /// Columns for gates: b, the curvature's b and a, then a with a forget gate.
  int64_t decay_columns() const { return gate_ == ForgetGate::kScalar ? heads_ : 0; }

  ForgetGate gate_;
  double squash_;
  at::Tensor A_log_, dt_bias_, curvature_A_log_, curvature_dt_bias_, log_scale_;
};

}  // namespace prism
