#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism {

struct HstuConfig {
  int64_t heads = 2, key_width = 0, value_width = 0, time_buckets = 128;
  bool time_bias = true;
  static constexpr auto fields = std::tuple{
      Field{"heads", &HstuConfig::heads, Range{1, 4096}, "", "attention heads H"},
      Field{"key_width", &HstuConfig::key_width, Range{0, 65536}, "",
            "query and key channels K a head; 0 means model width / heads"},
      Field{"value_width", &HstuConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"time_bias", &HstuConfig::time_bias, Any{}, "",
            "bias by elapsed time; needs a log with timestamps"},
      Field{"time_buckets", &HstuConfig::time_buckets, Range{1, 1024}, "", "buckets of the time bias"}};
};

/// HSTU's whole block (arXiv 2402.17152): u, v, q, k = SiLU(LN(x) W); pointwise attention without softmax
/// (ops/hstu_attention.h); y = x + W_o(u LN(o)) + b_o, layer norms without weights. State a sequence: "k"
/// [tokens,H,K], "v" [tokens,H,V], and with the time bias "seconds" int64 [tokens] since its first token.
class Hstu final : public Mixer {
 public:
  using Config = HstuConfig;
  static constexpr auto kName = "hstu";
  static constexpr auto kSummary = "HSTU's whole block: pointwise attention with position and time biases";
  static constexpr bool kWholeBlock = true, kNeedsPositions = true;
  static bool needs_times(const Config& config) { return config.time_bias; }

  /// Usage errors where the settings do not fit the width.
  Hstu(const Config& config, int64_t width, int64_t max_length);

  /// Without gaps all tokens share one moment.
  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  at::Tensor forward_with_gaps(const at::Tensor& x_BTD, const Packing& packing,
                               const at::Tensor& gaps) override;
  at::Tensor prefill_with_gaps(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                               MixerState& state) override;
  at::Tensor step_with_gaps(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  at::Tensor mix(const at::Tensor& x, const Packing& packing, const at::Tensor& gaps, MixerState& state,
                 const Dropout& drop) const;

  Config config_;
  int64_t max_length_;
  at::Tensor in_weight_, pos_weight_, time_weight_, out_weight_, out_bias_;
};

}  // namespace prism
