#pragma once
#include <cstdint>
#include <tuple>

#include "prism/core/config.h"
#include "prism/mixers/recurrent_mixer.h"

namespace prism {

struct Rwkv7Config {
  int64_t heads = 2, decay_rank = 0, rate_rank = 0, gate_rank = 0;
  static constexpr auto fields =
      std::tuple{Field{"heads", &Rwkv7Config::heads, Range{1, 4096}, "", "heads H; divides the model width"},
                 Field{"decay_rank", &Rwkv7Config::decay_rank, Range{0, 65536}, "",
                       "rank of the decay's projection; 0 means 2.5 sqrt(model width), in steps of 32"},
                 Field{"rate_rank", &Rwkv7Config::rate_rank, Range{0, 65536}, "",
                       "rank of the in-context learning rate's projection; 0 as for decay_rank"},
                 Field{"gate_rank", &Rwkv7Config::gate_rank, Range{0, 65536}, "",
                       "rank of the output gate's projection; 0 means 5 sqrt(model width), in steps of 32"}};
};

/// RWKV-7 time mixing (arXiv 2503.14456): S_t = (Diag(w_t) - (kk_t a_t) kk_t^T) S_{t-1} + k_t v_t^T, o_t =
/// S_t^T r_t. The erase reads the state before its decay. Every layer is a first layer: the value residual of
/// later layers, v + (v_first
/// - v) sigmoid(.), crosses layers and is left out. State a sequence: "S" [H,K,K] and "shift" [D], the last
/// input.
class Rwkv7 final : public RecurrentMixer {
 public:
  using Config = Rwkv7Config;
  static constexpr auto kName = "rwkv7";
  static constexpr auto kSummary =
      "RWKV-7: generalised delta rule with vector gates, learning rates and token shift";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Rwkv7(const Config& config, int64_t width);

  std::vector<StateTensor> state_tensors() const override;

 protected:
  at::Tensor mix(const at::Tensor& x, const TokenStream& stream) override;

 private:
  /// A projection through a low rank; the bias may be undefined.
  struct LowRank {
    at::Tensor down, up, bias;
  };
  LowRank register_low_rank(const char* name, int64_t rank, const at::Tensor& bias);
  void register_channel_scales();

  /// What the operation and the output need of each token; leading dimensions as x.
  struct Token {
    at::Tensor r, w, k, v, kk, a, g;
  };
  Token token(const at::Tensor& x, const at::Tensor& previous) const;
  at::Tensor output(const at::Tensor& o, const Token& t) const;
  at::Tensor by_head(const at::Tensor& x) const { return x.unflatten(-1, {heads_, head_width_}); }

  int64_t width_, heads_, head_width_;
  at::Tensor shift_mix_, r_weight_, k_weight_, v_weight_, out_weight_;
  at::Tensor k_k_, k_a_, r_k_, norm_weight_, norm_bias_;
  LowRank decay_, rate_, gate_;
};

}  // namespace prism
