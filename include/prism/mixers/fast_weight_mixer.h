#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "prism/mixers/mixer.h"
#include "prism/ops/fast_weights.h"

namespace prism {

/// A mixer whose state is made of weights that learn from the sequence. Its equations are in `mix`, which
/// serves forward, prefill and step; in a state, "conv" is the convolution's history, where there is one.
class FastWeightMixer : public Mixer {
 public:
  at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) override;
  at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) override;
  at::Tensor step(const at::Tensor& x_BD, MixerState& state) override;

 protected:
  /// `state`, if any, is continued; its lengths still count the tokens before x.
  virtual at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) = 0;

  /// Registers "conv_weight" [channels, width]; a width of 0 means no convolution.
  void register_convolution(int64_t channels, int64_t width);
  bool has_convolution() const { return conv_weight_.defined(); }
  /// The convolution with SiLU; SiLU alone without one.
  at::Tensor convolve(const at::Tensor& x, const Packing& packing, MixerState* state) const;
  int64_t convolution_state_size() const;

 private:
  at::Tensor conv_weight_;
};

/// What Titans, ATLAS and Miras share: q, k, v = SiLU(ShortConv(W x)), q and k of unit length, gates, a
/// memory of each head with learned first weights, y = W_o(RMSNorm(o) SiLU(W_g x)). State a sequence: "W1"
/// (and "W2") after the last token, "start1" at the start of its mini-batch; with momentum "S1", what the
/// step follows; with a window "recent_k", "recent_v" and "recent_weight" of the last window-1 tokens.
class MemoryMixer : public FastWeightMixer {
 public:
  int64_t state_size(int64_t tokens) const override;

 protected:
  struct Shape {
    int64_t heads, key_width, value_width;  ///< 0: model width / heads
    int64_t mini_batch, conv_width, window = 1;
    bool momentum, output_norm, output_gate;
  };
  /// Registers all but the memory's weights. `gates`: numbers a head of x's gates. Usage errors open with
  /// `name`.
  MemoryMixer(const Shape& shape, int64_t gates, int64_t width, const char* name);
  /// Registers "W1", "W2", ... [H,in,out].
  void register_memory(const std::vector<at::Tensor>& weights);
  const Shape& shape() const { return shape_; }

  struct Heads {
    at::Tensor q, k, v;             ///< [B,T,H,.]
    std::vector<at::Tensor> gates;  ///< W x, [B,T,H] each, fp32 (fp64 with fp64)
  };
  /// q, k, v, memory and rule of fast_weights; the rest is filled in.
  virtual FastWeightArgs memory(const Heads& heads, const at::Tensor& x_BTD) const = 0;
  /// The weights that sequences start from.
  virtual std::vector<at::Tensor> first_weights() const { return W_; }

 private:
  at::Tensor mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) final;
  Heads heads(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) const;

  Shape shape_;
  int64_t gates_;
  std::vector<at::Tensor> W_;
  at::Tensor in_weight_, norm_weight_, gate_weight_, out_weight_;
};

/// The state of `sequences` for fast_weights: what `state` holds, or the first weights [H,in,out] at their
/// start.
FastState load_fast_state(const MixerState* state, const std::vector<at::Tensor>& first, int64_t sequences);
/// Puts a state of fast_weights into `state`. Without `keep_weights` "W" is left out: "start" and "S" give
/// it.
void store_fast_state(const FastState& from, bool keep_weights, MixerState& state);

}  // namespace prism
