#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/ops/dropout.h"
#include "prism/ops/packing.h"

namespace prism {

class Ranks;

/// What a mixer remembers of its sequences: named tensors whose first dimension is the sequence, and how many
/// tokens each sequence has seen. An empty state is the start of every sequence.
struct MixerState {
  std::map<std::string, at::Tensor> tensors;
  std::vector<int64_t> lengths;

  bool empty() const { return lengths.empty(); }
  /// Counts the tokens of `packing` (of activation x) as seen.
  void advance(const at::Tensor& x, const Packing& packing);
};

/// A sequence mixer, x [B,T,D] -> y [B,T,D], causal within each sequence of the packing. Some mixers are
/// whole blocks with their own norms, residuals, dropout and FFN (SASRec, HSTU): their spec says so. forward
/// = prefill = token-by-token step, to rounding. Without a state, forward and prefill start every sequence
/// anew.
class Mixer : public torch::nn::Module {
 public:
  /// Training and scoring: no state.
  virtual at::Tensor forward(const at::Tensor& x_BTD, const Packing& packing) = 0;
  /// The same outputs; `state` (empty at the start of sequences) is continued and holds the state after the
  /// last token.
  virtual at::Tensor prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) = 0;
  /// One token of each sequence, x [B,D] -> y [B,D]; `state` (empty at the start) is updated in place. Not
  /// differentiable.
  virtual at::Tensor step(const at::Tensor& x_BD, MixerState& state) = 0;
  /// Floats of state a sequence after `tokens` tokens.
  virtual int64_t state_size(int64_t tokens) const = 0;
  /// Whether every step of a state that is not empty enqueues the same operations on tensors of the same
  /// shapes, whatever `lengths` are: only then may a step be recorded once and replayed for those that
  /// follow.
  virtual bool steps_repeat() const { return false; }

  /// Whether forward_in_parts exists: nothing but prism_chunk and the convolution sees earlier tokens.
  virtual bool takes_parts() const { return false; }
  /// Tokens that a part of a sequence needs at least.
  virtual int64_t shortest_part() const { return 1; }
  /// forward of sequences that are cut over ranks, context parallelism: x and packing are this rank's part
  /// (distributed/sequence_parts.h). Usage error where takes_parts() is false.
  virtual at::Tensor forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks);

  /// The same three for a mixer that sees time (its spec says so), as the model calls them: `gaps` int64
  /// [B,T] or [B], seconds since the token before in the sequence; undefined where times are unknown. Other
  /// mixers ignore them.
  virtual at::Tensor forward_with_gaps(const at::Tensor& x_BTD, const Packing& packing,
                                       const at::Tensor& gaps);
  virtual at::Tensor prefill_with_gaps(const at::Tensor& x_BTD, const Packing& packing,
                                       const at::Tensor& gaps, MixerState& state);
  virtual at::Tensor step_with_gaps(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state);

  /// What the last forward in training mode adds to the loss, already weighted: a scalar, undefined for most
  /// mixers. Evaluation leaves it alone.
  const at::Tensor& auxiliary_loss() const { return auxiliary_loss_; }
  /// Puts another one in its place and returns it: for callers whose forward is called twice.
  at::Tensor exchange_auxiliary_loss(const at::Tensor& loss) { return std::exchange(auxiliary_loss_, loss); }

  /// Dropout of whole blocks in training mode; other mixers have none inside.
  void set_dropout(const Dropout& dropout) { dropout_ = dropout; }

 protected:
  /// What set_dropout gave; none in evaluation mode.
  Dropout dropout_now() const { return is_training() ? dropout_ : Dropout{}; }
  void set_auxiliary_loss(const at::Tensor& loss) { auxiliary_loss_ = loss; }

 private:
  Dropout dropout_;
  at::Tensor auxiliary_loss_;
};

/// A mixer's name and settings before it is built: what a recipe or a checkpoint holds.
class MixerSpec {
 public:
  virtual ~MixerSpec() = default;
  /// Binds the mixer's Config as section `section`.
  virtual void bind(Settings& settings, const std::string& section) = 0;
  /// Builds with freshly initialised weights (the default generator). `width` is the model width D,
  /// `max_length` the most tokens of a sequence, for mixers whose parameters depend on it. Throws a usage
  /// error when the settings do not fit the width.
  virtual std::shared_ptr<Mixer> build(int64_t width, int64_t max_length) const = 0;
  virtual bool is_whole_block() const = 0;
  /// Whether the model must add a learned position embedding.
  virtual bool needs_positions() const = 0;
  /// Whether the mixer sees the times of the tokens. It may then change a token's row when the next one
  /// comes, so that a model steps by computing the history anew.
  virtual bool needs_times() const = 0;
};

/// Names in the order of the documentation.
const std::vector<std::string>& mixer_names();
/// One line for lists and --help.
std::string mixer_summary(const std::string& name);
/// A usage error names the nearest known mixer.
std::unique_ptr<MixerSpec> make_mixer_spec(const std::string& name);

}  // namespace prism
