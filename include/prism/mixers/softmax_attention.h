#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism {

struct SoftmaxAttentionConfig {
  int64_t heads = 2, key_heads = 0, head_width = 0;
  double rope_theta = 10000;
  static constexpr auto fields =
      std::tuple{Field{"heads", &SoftmaxAttentionConfig::heads, Range{1, 4096}, "", "query heads H"},
                 Field{"key_heads", &SoftmaxAttentionConfig::key_heads, Range{0, 4096}, "",
                       "heads of keys and values; divides heads; 0 means as many"},
                 Field{"head_width", &SoftmaxAttentionConfig::head_width, Range{0, 65536}, "",
                       "channels K a head, even; 0 means model width / heads"},
                 Field{"rope_theta", &SoftmaxAttentionConfig::rope_theta, Range{1, 1e12}, "",
                       "base of the rotary positions"}};
};

/// o_i = sum_{j<=i} softmax_j(q_i . k_j / sqrt K) v_j with rotary positions (half-split), without biases.
/// State a sequence: "k" and "v" [tokens, Hk, K], keys already turned.
class SoftmaxAttention final : public Mixer {
 public:
  using Config = SoftmaxAttentionConfig;
  static constexpr auto kName = "softmax_attention";
  static constexpr auto kSummary = "Causal softmax attention with rotary positions and grouped keys";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  SoftmaxAttention(const Config& config, int64_t width);

  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state);

  Config config_;
  at::Tensor in_weight_, out_weight_;
};

}  // namespace prism
