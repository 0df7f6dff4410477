#pragma once
#include <cstdint>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

/// Exact Flow Linear Attention (arXiv 2512.12602): the delta rule's differential equation dS/dt = k (v - S^T
/// k)^T, held for the time b_t and solved exactly: S_t = (I - b' k k^T) S_{t-1} + b' k v^T with b' = (1 -
/// exp(-b |k|^2)) / |k|^2. Keys keep their length. o_t = K^-1/2 S_t^T q_t. State a sequence: "S" [H,K,V] and
/// "conv" [2 Hk K + H V, W-1].
class Efla final : public MatrixMixer {
 public:
  using Config = DeltaConfig;
  static constexpr auto kName = "efla";
  static constexpr auto kSummary = "EFLA: exact flow of the delta rule, keys of any length";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Efla(const Config& config, int64_t width);

  bool takes_parts() const override { return true; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
};

}  // namespace prism
