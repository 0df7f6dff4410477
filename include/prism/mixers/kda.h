#pragma once
#include <cstdint>
#include <tuple>

#include "prism/mixers/matrix_mixer.h"

namespace prism {

enum class ChannelDecayKind { kMamba, kBounded };
template <>
struct EnumNames<ChannelDecayKind> {
  static constexpr std::array names{"mamba", "bounded"};
};

/// The fields of KdaConfig, or of a struct on top of it.
template <class C>
constexpr auto kda_fields() {
  using Integer = Field<C, int64_t, Range>;
  using Switch = Field<C, bool, Any>;
  return std::tuple{
      Integer{"heads", &C::heads, Range{1, 4096}, "", "value heads H"},
      Integer{"key_heads", &C::key_heads, Range{0, 4096}, "",
              "heads of queries and keys; divides heads; 0 means as many"},
      Integer{"key_width", &C::key_width, Range{0, 65536}, "",
              "key channels K a head; 0 means model width / heads"},
      Integer{"value_width", &C::value_width, Range{0, 65536}, "",
              "value channels V a head; 0 means model width / heads"},
      Integer{"conv_width", &C::conv_width, Range{1, 64}, "tokens",
              "width of the causal convolution on q, k and v"},
      Integer{"gate_rank", &C::gate_rank, Range{0, 65536}, "",
              "rank of the projections of the decay and of the output gate; 0 means V"},
      Field<C, ChannelDecayKind, Any>{
          "decay", &C::decay, Any{}, "",
          "log gates: mamba, -exp(A_log) softplus(.), or bounded, lower_bound sigmoid(exp(A_log) .)"},
      Field<C, double, Range>{"lower_bound", &C::lower_bound, Range{-1000, 0}, "",
                              "smallest log gate of decay = bounded"},
      Switch{"output_norm", &C::output_norm, Any{}, "", "RMS norm of each head's output"},
      Switch{"output_gate", &C::output_gate, Any{}, "", "output times sigmoid(W_4 W_3 x + c)"}};
}

struct KdaConfig : DeltaConfig {
  int64_t gate_rank = 0;
  ChannelDecayKind decay = ChannelDecayKind::kMamba;
  double lower_bound = -5;
  static constexpr auto fields = kda_fields<KdaConfig>();
};

/// Kimi Delta Attention (arXiv 2510.26692): S' = Diag(a_t) S_{t-1}, S_t = (I - b_t k_t k_t^T) S' + b_t k_t
/// v_t^T, o_t = K^-1/2 S_t^T q_t: the delta rule with a gate a key channel. State a sequence: "S" [H,K,V] and
/// "conv" [2 Hk K + H V, W-1].
class Kda : public MatrixMixer {
 public:
  using Config = KdaConfig;
  static constexpr auto kName = "kda";
  static constexpr auto kSummary =
      "Kimi Delta Attention (KDA): delta rule with a forget gate for every key channel";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Kda(const Config& config, int64_t width) : Kda(config, width, kName, 0) {}

  at::Tensor read(const at::Tensor& projected, const TokenStream& stream) const override;
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const override;

 protected:
  /// With `more_columns` of gates, for mixers on top.
  Kda(const Config& config, int64_t width, const char* name, int64_t more_columns);

  /// What the operation needs of each token, and the columns on top.
  struct Token {
    at::Tensor q, k, w, b, g, more;
  };
  Token token(const at::Tensor& projected, const TokenStream& stream) const;

 private:
  at::Tensor log_decay(const at::Tensor& low_rank) const;

  int64_t gate_rank_;
  ChannelDecayKind decay_;
  double lower_bound_;
  at::Tensor A_log_, dt_bias_, decay_up_weight_, gate_down_weight_, gate_up_bias_;
};

}  // namespace prism
