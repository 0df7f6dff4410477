#pragma once
#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"
#include "prism/ops/prism_refine.h"

namespace prism {

enum class Decay { kMamba, kSigmoid, kNone };
enum class ConvPlace { kAnchor, kProjections };
enum class Anchor { kShortConv, kToken };
enum class Gain { kLearned, kConstant };
enum class SolverKey { kTied, kSeparate, kSharedTied, kSharedSeparate };

template <>
struct EnumNames<Decay> {
  static constexpr std::array names{"mamba", "sigmoid", "none"};
};
template <>
struct EnumNames<ConvPlace> {
  static constexpr std::array names{"anchor", "projections"};
};
template <>
struct EnumNames<Anchor> {
  static constexpr std::array names{"shortconv", "token"};
};
template <>
struct EnumNames<Gain> {
  static constexpr std::array names{"learned", "constant"};
};
template <>
struct EnumNames<SolverKey> {
  static constexpr std::array names{"tied", "separate", "shared_tied", "shared_separate"};
};
template <>
struct EnumNames<Nonlinearity> {
  static constexpr std::array names{"gelu", "identity"};
};
template <>
struct EnumNames<Residual> {
  static constexpr std::array names{"subtract", "none"};
};

struct PrismConfig {
  int64_t heads = 2, steps = 2, key_heads = 0, key_width = 0, value_width = 0, conv_width = 4;
  int64_t solver_rank = 0;
  Decay decay = Decay::kMamba;
  Nonlinearity nonlinearity = Nonlinearity::kGelu;
  Anchor anchor = Anchor::kShortConv;
  Gain gain = Gain::kLearned;
  Residual residual = Residual::kSubtract;
  SolverKey solver_key = SolverKey::kTied;
  ConvPlace conv = ConvPlace::kAnchor;
  bool output_norm = true, output_gate = true;

  static constexpr auto fields = std::tuple{
      Field{"heads", &PrismConfig::heads, Range{1, 4096}, "", "value heads H; divides the model width"},
      Field{"steps", &PrismConfig::steps, Range{0, 8}, "",
            "refinement steps L, the rank of each write; 0 writes the value itself, as Gated DeltaNet does"},
      Field{"key_heads", &PrismConfig::key_heads, Range{0, 4096}, "",
            "heads of queries and keys; divides heads; 0 means as many"},
      Field{"key_width", &PrismConfig::key_width, Range{0, 65536}, "",
            "key channels K a head; 0 means model width / heads"},
      Field{"value_width", &PrismConfig::value_width, Range{0, 65536}, "",
            "value channels V a head; 0 means model width / heads, as the anchor needs"},
      Field{"conv_width", &PrismConfig::conv_width, Range{1, 64}, "tokens",
            "width W of the causal convolution"},
      Field{"solver_rank", &PrismConfig::solver_rank, Range{0, 4096}, "",
            "rank of the projections of the gains and of the keys of steps 2..L; 0 means full"},
      Field{
          "decay", &PrismConfig::decay, Any{}, "",
          "forget gate: mamba, exp(-exp(A_log) softplus(.)), sigmoid, or none: only the erase rule forgets"},
      Field{"nonlinearity", &PrismConfig::nonlinearity, Any{}, "", "of each refinement step (eq. 15)"},
      Field{"anchor", &PrismConfig::anchor, Any{}, "",
            "the proxy u of the context: SiLU(ShortConv(x)) (eq. 9), or SiLU(x) of the token alone"},
      Field{"gain", &PrismConfig::gain, Any{}, "", "the gains p_l (eq. 13): learned, or constant 1"},
      Field{"residual", &PrismConfig::residual, Any{}, "",
            "subtract: each step sees what the steps before it left (eq. 16); none: all see r_1"},
      Field{"solver_key", &PrismConfig::solver_key, Any{}, "",
            "tied: the erase key is k_1 (eq. 17); separate: it has its own projections and writes nothing; "
            "shared_*: all steps write on one key"},
      Field{"conv", &PrismConfig::conv, Any{}, "",
            "where the convolution is: on the input, as the anchor, or on q, k and v after their projections "
            "(needs steps = 0)"},
      Field{"output_norm", &PrismConfig::output_norm, Any{}, "", "RMS norm of each head's output"},
      Field{"output_gate", &PrismConfig::output_gate, Any{}, "", "output times SiLU(W_g x)"}};
};

/// The layer of arXiv 2602.10796 (docs/prism.md). State a sequence: "S" [H,K,V] and "conv" [C,W-1].
class Prism final : public Mixer {
 public:
  using Config = PrismConfig;
  static constexpr auto kName = "prism";
  static constexpr auto kSummary = "PRISM: gated delta rule with a rank-L write solved in L refinement steps";
  static constexpr bool kWholeBlock = false, kNeedsPositions = false;

  /// Usage errors where the settings do not fit each other or the width.
  Prism(const Config& config, int64_t width);

  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  bool takes_parts() const override { return true; }
  int64_t shortest_part() const override;
  at::Tensor forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;
  bool steps_repeat() const override { return true; }

 private:
  /// What the operation needs of each token; leading dimensions [B,T] or [B].
  struct Token {
    at::Tensor q, k, w, b, g;
  };
  /// The one projection, split; heads not yet separated.
  struct Projected {
    at::Tensor q, keys, v, gains, beta, decay;
  };
  /// The causal convolution with SiLU, over a batch or of one token.
  using Convolution = std::function<at::Tensor(const at::Tensor&)>;

  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state);
  Token token(const at::Tensor& x, const Convolution& convolve) const;
  Projected project(const at::Tensor& u) const;
  Projected split(const at::Tensor& projected) const;
  at::Tensor writes(const at::Tensor& u, const Projected& p, const at::Tensor& beta) const;
  at::Tensor log_decay(const at::Tensor& a) const;
  at::Tensor output(const at::Tensor& o, const at::Tensor& x) const;
  void start(MixerState& state, int64_t sequences, const at::Tensor& x) const;
  void register_decay(int64_t heads);

  bool separate_erase() const;
  bool shared_key() const;
  bool has_conv() const;
  int64_t conv_channels() const;
  int64_t writes_a_token() const;  ///< step sizes that gate a write: max(L, 1)
  int64_t full_keys() const;       ///< keys whose projection always has full rank
  int64_t later_keys() const;      ///< keys of steps 2..L
  /// Columns of the one projection: q, full keys, later keys, v, gains, step sizes, decay.
  std::vector<int64_t> columns() const;

  Config config_;
  int64_t width_;
  at::Tensor conv_weight_, conv_bias_, in_weight_, gain_bias_, later_keys_weight_, gains_weight_;
  at::Tensor A_log_, dt_bias_, decay_bias_, gate_weight_, norm_weight_, out_weight_;
};

}  // namespace prism
