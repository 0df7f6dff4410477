#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/recurrent_mixer.h"

namespace prism {

struct GsaConfig {
  int64_t heads = 2, key_width = 0, value_width = 0, slots = 0;
  double gate_divisor = 8;
  static constexpr auto fields =
      std::tuple{Field{"heads", &GsaConfig::heads, Range{1, 4096}, "", "heads H"},
                 Field{"key_width", &GsaConfig::key_width, Range{0, 65536}, "",
                       "key channels K a head; 0 means model width / heads"},
                 Field{"value_width", &GsaConfig::value_width, Range{0, 65536}, "",
                       "value channels V a head; 0 means model width / heads"},
                 Field{"slots", &GsaConfig::slots, Range{0, 65536}, "", "slots M a head; 0 means K"},
                 Field{"gate_divisor", &GsaConfig::gate_divisor, Range{1, 1e6}, "",
                       "tau: the log gate is log sigmoid(.) / tau"}};
};

/// Gated slot attention (arXiv 2409.07146): M slots of keys and values that forget at a = exp(g) and take
/// what they forgot from the token, softmax between them:
///   K_t = Diag(a) K_{t-1} + (1 - a) k^T,  V_t = Diag(a) V_{t-1} + (1 - a) v^T,  o_t = V_t^T softmax(K_t q_t)
/// State a sequence: "K" [H,M,K] and "V" [H,M,V].
class Gsa final : public RecurrentMixer {
 public:
  using Config = GsaConfig;
  static constexpr auto kName = "gsa";
  static constexpr auto kSummary =
      "Gated slot attention (GSA): softmax attention over a few gated memory slots";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Gsa(const Config& config, int64_t width);

  std::vector<StateTensor> state_tensors() const override;

 protected:
  at::Tensor mix(const at::Tensor& x, const TokenStream& stream) override;

 private:
  int64_t heads_, key_width_, value_width_, slots_;
  double gate_divisor_;
  at::Tensor in_weight_, norm_weight_, out_weight_;
};

}  // namespace prism
