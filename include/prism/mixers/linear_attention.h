#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

enum class FeatureMap { kElu, kIdentity };
template <>
struct EnumNames<FeatureMap> {
  static constexpr std::array names{"elu", "identity"};
};

struct LinearAttentionConfig {
  int64_t heads = 2, key_heads = 0, key_width = 0, value_width = 0;
  FeatureMap feature_map = FeatureMap::kElu;
  bool normaliser = true, rotary = false, output_norm = true, output_gate = false;
  static constexpr auto fields = std::tuple{
      Field{"heads", &LinearAttentionConfig::heads, Range{1, 4096}, "", "value heads H"},
      Field{"key_heads", &LinearAttentionConfig::key_heads, Range{0, 4096}, "",
            "heads of queries and keys; divides heads; 0 means as many"},
      Field{"key_width", &LinearAttentionConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means model width / heads"},
      Field{"value_width", &LinearAttentionConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"feature_map", &LinearAttentionConfig::feature_map, Any{}, "",
            "of q and k: elu(x) + 1, or x itself"},
      Field{"normaliser", &LinearAttentionConfig::normaliser, Any{}, "",
            "divide by q . sum k; needs positive features"},
      Field{"rotary", &LinearAttentionConfig::rotary, Any{}, "",
            "rotary positions on q and k; not with the normaliser"},
      Field{"output_norm", &LinearAttentionConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &LinearAttentionConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// o_t = num_t / (den_t + 1e-10) with [num_t, den_t] = scale [S_t, z_t]^T q_t: a last value channel of ones
/// makes prism_chunk carry z_t = z_{t-1} + k_t beside S_t.
at::Tensor with_normaliser_channel(const at::Tensor& v);
at::Tensor normalised(const at::Tensor& o_and_denominator);

/// Linear attention (arXiv 2006.16236): S_t = S_{t-1} + k_t v_t^T, o_t = S_t^T q_t / (q_t . z_t) with z_t =
/// z_{t-1} + k_t, or without the denominator K^-1/2 S_t^T q_t. State a sequence: "S" [H,K,V], or [H,K,V+1]
/// with z as the last column.
class LinearAttention final : public MatrixMixer {
 public:
  using Config = LinearAttentionConfig;
  static constexpr auto kName = "linear_attention";
  static constexpr auto kSummary = "Linear attention, with or without its normaliser";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  LinearAttention(const Config& config, int64_t width);

  bool takes_parts() const override { return !rotary_; }
  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  std::vector<StateTensor> state_tensors() const override;
  /// Rotary positions come from the host.
  bool steps_repeat() const override { return !rotary_; }

 private:
  at::Tensor features(const at::Tensor& x, const TokenStream& stream) const;

  FeatureMap feature_map_;
  bool normaliser_, rotary_;
};

}  // namespace prism
