#pragma once
#include <cstdint>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/fast_weight_mixer.h"
#include "prism/ops/lact.h"

namespace prism {

struct LactConfig {
  int64_t heads = 2, key_width = 0, value_width = 0, expansion = 1, chunk = 2048, conv_width = 0;
  bool muon = true, momentum = true, prenorm = false;
  static constexpr auto fields = std::tuple{
      Field{"heads", &LactConfig::heads, Range{1, 4096}, "", "heads H, each with its own fast weights"},
      Field{"key_width", &LactConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means model width / heads"},
      Field{"value_width", &LactConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads"},
      Field{"expansion", &LactConfig::expansion, Range{1, 64}, "",
            "hidden channels of the fast weights, times K"},
      Field{"chunk", &LactConfig::chunk, Range{1, 1048576}, "tokens",
            "tokens C between updates; sequences of at most C pass a fixed SwiGLU"},
      Field{"conv_width", &LactConfig::conv_width, Range{0, 64}, "tokens",
            "width of a causal convolution on q, k and v; 0 means none"},
      Field{"muon", &LactConfig::muon, Any{}, "", "updates along their orthogonalised direction"},
      Field{"momentum", &LactConfig::momentum, Any{}, "", "updates add a gated share of the last one"},
      Field{"prenorm", &LactConfig::prenorm, Any{}, "",
            "updates add to weights without the norm, which are normalised for use"}};
};

/// LaCT (arXiv 2505.23884): o = W1 (SiLU(W0 q) * (W2 q)) with weights that change after each chunk of C
/// tokens, by one step on sum_i f(k_i) . v_i; see ops/lact.h. Not causal inside the update, causal across
/// chunks: tokens of one chunk do not see each other. State a sequence: "w0", "w2" [H,E K,K], "w1" [H,V,E K];
/// with prenorm "sum0..2", with momentum "momentum0..2" of the same shapes; the open chunk's "open_k",
/// "open_v", "open_lr" [tokens,H,.], with momentum "open_momentum" [tokens,H]; with a convolution "conv".
class Lact final : public FastWeightMixer {
 public:
  using Config = LactConfig;
  static constexpr auto kName = "lact";
  static constexpr auto kSummary = "LaCT: SwiGLU fast weights that learn a large chunk of tokens at a time";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  Lact(const Config& config, int64_t width);

  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;

 private:
  struct Token {
    at::Tensor q;
    LactTokens learns;
  };
  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) override;
  at::Tensor mix_on(const Token& token, const at::Tensor& x_BTD, const Packing& packing,
                    MixerState& state) const;
  Token token(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) const;
  LactState weights(const MixerState* state, int64_t sequences) const;
  void update_full_chunks(MixerState& state) const;
  int64_t open_tokens(int64_t seen) const { return seen == 0 ? 0 : (seen - 1) % config_.chunk + 1; }
  LactRule rule() const { return {config_.chunk, config_.muon, config_.prenorm}; }

  Config config_;
  LactWeights w_;
  at::Tensor in_weight_, rate_bias_, norm_weight_, out_weight_;
};

}  // namespace prism
