#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "prism/mixers/mixer.h"
#include "prism/ops/prism_chunk.h"

namespace prism {

/// How tokens reach a recurrent mixer: many a sequence, x [B,T,...], with or without a state to continue, or
/// the next one of each sequence, x [B,...]. The equations of a mixer are written once on it and serve
/// forward, prefill and step.
class TokenStream {
 public:
  /// Tokens in `packing`; a state, if any, is continued and left after the last token.
  TokenStream(const Packing& packing, MixerState* state) : packing_(packing), state_(state) {}
  /// The next token of each sequence; inference only.
  static TokenStream next_of(MixerState& state) { return TokenStream(state); }
  /// This rank's part of sequences that are cut over ranks (distributed/sequence_parts.h): convolve and recur
  /// see the parts before it, nothing else does.
  static TokenStream part_of(const Packing& packing, Ranks& ranks) {
    TokenStream stream(packing, nullptr);
    stream.ranks_ = &ranks;
    return stream;
  }

  bool is_single() const { return single_; }
  const Packing& packing() const { return packing_; }
  /// Where the sequences start in the flattened tokens of x, and the end.
  std::vector<int64_t> offsets(const at::Tensor& x) const;
  bool has_state() const { return state_ != nullptr; }
  /// The state's tensor `name`; nothing without a state.
  std::optional<at::Tensor> state(const std::string& name) const;
  void set_state(const std::string& name, const at::Tensor& tensor) const;
  /// Positions of the tokens in their sequences: int64 [B,T] or [B].
  at::Tensor positions(const at::Tensor& x) const;

  /// SiLU of the causal depthwise convolution; x [...,C], weight [C,W], bias [C] or undefined. State "conv".
  at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) const;
  /// prism_chunk or prism_step: o [...,H,V]. Leading dimensions of `args` as in x; packing, states and the
  /// wish for one are filled in. State "S".
  at::Tensor recur(PrismChunkArgs args) const;

 private:
  explicit TokenStream(MixerState& state) : packing_(Packing::rows()), state_(&state), single_(true) {}

  Packing packing_;
  MixerState* state_;
  Ranks* ranks_ = nullptr;
  bool single_ = false;
};

/// A tensor of a recurrent state: its shape a sequence, and whether it holds activations (in their dtype) or
/// sums (fp32, fp64 with fp64).
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool activations = false;
};

/// A mixer whose state has a fixed size: it states its tensors and its equations, and gets forward, prefill
/// and step.
class RecurrentMixer : public Mixer {
 public:
  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;
  int64_t state_size(int64_t tokens) const override;
  bool steps_repeat() const override { return true; }
  at::Tensor forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks) override;

  /// The tensors of the state; all start as zeros.
  virtual std::vector<StateTensor> state_tensors() const = 0;

 protected:
  virtual at::Tensor mix(const at::Tensor& x, const TokenStream& stream) = 0;

 private:
  void start(MixerState& state, int64_t sequences, const at::Tensor& x) const;
};

}  // namespace prism
