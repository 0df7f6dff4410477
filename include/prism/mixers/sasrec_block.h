#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"

namespace prism {

enum class NormPlace { kPre, kPost };
template <>
struct EnumNames<NormPlace> {
  static constexpr std::array names{"pre", "post"};
};

struct SasrecBlockConfig {
  int64_t heads = 2;
  NormPlace norm = NormPlace::kPre;
  static constexpr auto fields = std::tuple{
      Field{"heads", &SasrecBlockConfig::heads, Range{1, 4096}, "",
            "attention heads; divides the model width"},
      Field{"norm", &SasrecBlockConfig::norm, Any{}, "", "layer norms before each branch or after each sum"}};
};

/// Weights of a SASRec block of width D, [out, in] as torch's Linear; Wqkv stacks q, k and v.
struct SasrecWeights {
  at::Tensor ln1_w, ln1_b, ln2_w, ln2_b;  ///< [D]
  at::Tensor Wqkv, bqkv, Wo, bo;          ///< [3D,D], [3D], [D,D], [D]
  at::Tensor W1, b1, W2, b2;              ///< [D,D], [D]
};

/// norm = pre:  n = LN_1(x),  x' = x + Attention(n),  y = x' + FFN(LN_2(x'));
/// norm = post: x' = LN_1(x + Attention(x)),  y = LN_2(x' + FFN(x')),  FFN(x) = W2 ReLU(W1 x + b1) + b2.
/// `drop` acts on both residual branches. With a state, keys and values "k", "v" are continued.
at::Tensor sasrec_block(const at::Tensor& x_BTD, const SasrecWeights& weights, int64_t heads, NormPlace norm,
                        const Packing& packing, const Dropout& drop = {}, MixerState* state = nullptr);

/// The whole block of SASRec (arXiv 1808.09781, as in pmixer/SASRec.pytorch). State a sequence: "k" and "v"
/// [tokens, H, K].
class SasrecBlock final : public Mixer {
 public:
  using Config = SasrecBlockConfig;
  static constexpr auto kName = "sasrec_block";
  static constexpr auto kSummary =
      "SASRec's whole block: softmax attention, ReLU FFN of width D, layer norms";
  static constexpr bool kWholeBlock = true, kNeedsPositions = true;

  /// Usage errors where the settings do not fit the width.
  SasrecBlock(const Config& config, int64_t width);

  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  Config config_;
  int64_t width_;
  SasrecWeights weights_;
};

}  // namespace prism
