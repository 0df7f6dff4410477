#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"
#include "prism/mixers/mixer_pattern.h"
#include "prism/ops/dropout.h"
#include "prism/ops/packing.h"

namespace prism {

enum class ModelSize { kTiny, k130m, k340m, k1300m };
template <>
struct EnumNames<ModelSize> {
  static constexpr std::array names{"tiny", "130m", "340m", "1.3b"};
};

struct LanguageModelConfig {
  std::string mixer = "prism";
  ModelSize size = ModelSize::kTiny;
  int64_t width = 128, blocks = 2, ffn_width = 320, max_length = 2048;
  double dropout = 0;
  static constexpr auto fields = std::tuple{
      Field{"mixer", &LanguageModelConfig::mixer, Any{}, "",
            "sequence mixer of every block, or a pattern that the blocks repeat: prism*3,softmax_attention"},
      Field{"size", &LanguageModelConfig::size, Any{}, "",
            "gives width, blocks, ffn_width, heads and PRISM's solver_rank where nothing else chose them"},
      Field{"width", &LanguageModelConfig::width, Range{1, 65536}, "", "model width D"},
      Field{"blocks", &LanguageModelConfig::blocks, Range{1, 1024}, "", "number of blocks"},
      Field{"ffn_width", &LanguageModelConfig::ffn_width, Range{1, 1048576}, "",
            "inner width of the SwiGLU FFN"},
      Field{"max_length", &LanguageModelConfig::max_length, Range{1, 1e9}, "tokens",
            "for mixers whose parameters depend on the longest sequence"},
      Field{"dropout", &LanguageModelConfig::dropout, Range{0, 0.99}, "",
            "on the embedding and both residual branches"}};
};

/// Everything that defines a language model, as sections [model] and [mixer] of a recipe; a pattern of
/// several mixers has a section [mixer.NAME] for each.
class LanguageModelSpec {
 public:
  explicit LanguageModelSpec(const std::string& mixer = "prism");
  /// Binds sections "model" and "mixer"; the spec must outlive `settings`.
  void bind(Settings& settings);
  /// Takes from model.size what neither recipe nor flags chose. `settings` are those that it was bound to.
  void fit_to_size(const Settings& settings);

  LanguageModelConfig model;
  MixerPattern mixer;
};

/// State of sequences inside the model: one entry a block. Empty at their start. Its size does not grow with
/// the tokens for recurrent mixers.
struct LanguageModelState {
  std::vector<MixerState> blocks;
};

/// Token embedding, blocks of x + Mixer(RMSNorm(x)) and x + SwiGLU(RMSNorm(x)), final RMSNorm; the head is
/// the embedding: logits = h E^T.
class LanguageModel : public torch::nn::Module {
 public:
  /// Weights come from the stream {seed, "weights"}. Usage error for mixers that need learned positions or
  /// times (sasrec_block, hstu).
  LanguageModel(const LanguageModelSpec& spec, int64_t vocabulary, uint64_t seed);

  /// Hidden vectors h [B,T,D] after each token of tokens int64 [B,T]; every sequence of `packing` starts
  /// anew. In training mode dropout draws from the stream {seed, "dropout", step} set by set_dropout_step.
  at::Tensor forward(const at::Tensor& tokens_BT, const Packing& packing);
  /// The same, without dropout, of sequences that are cut along their tokens over ranks: tokens and packing
  /// are this rank's part (distributed/sequence_parts.h). Error where takes_parts() is false.
  at::Tensor forward_in_parts(const at::Tensor& tokens_BT, const Packing& packing, Ranks& ranks);
  /// Whether all mixers go over parts of sequences, and there is no dropout.
  bool takes_parts() const;
  /// Tokens that a part of a sequence needs at least.
  int64_t shortest_part() const;
  /// The same as forward; `state` (empty at the start) is continued and holds the state after the last token.
  at::Tensor prefill(const at::Tensor& tokens_BT, const Packing& packing, LanguageModelState& state);
  /// One more token of each sequence, int64 [B] -> h [B,D].
  at::Tensor step(const at::Tensor& tokens_B, LanguageModelState& state);

  /// [vocabulary, D]
  const at::Tensor& embedding() const { return embedding_; }
  /// h [...,D] -> [..., vocabulary].
  at::Tensor logits(const at::Tensor& h) const;

  /// `row`: place of the next batch's first token among those of the whole step.
  void set_dropout_step(int64_t step, int64_t row = 0) { dropout_step_ = step, dropout_row_ = row; }
  /// Puts the seeds of step `step` on the GPU of the model, always in the same place: forward passes of that
  /// step read them there, so that they can be recorded and replayed for other steps. Whether it did; false
  /// on a CPU and where the CUDA kernels are not loaded.
  bool stage_dropout_step(int64_t step);
  /// Whether blocks keep only their inputs for backward, which computes the rest anew: the same bits in a
  /// fraction of the memory, for one more forward. The model must then outlive the graph of a forward.
  void set_activation_checkpointing(bool on) { checkpointing_ = on; }
  /// What the last forward in training mode adds to the loss; undefined where nothing does.
  at::Tensor auxiliary_loss() const;
  int64_t vocabulary() const { return embedding_.size(0); }
  /// Floats of state a sequence after `tokens` tokens.
  int64_t state_size(int64_t tokens) const;
  /// Whether a step does the same for every token (Mixer::steps_repeat), in all blocks.
  bool steps_repeat() const;
  /// Parameters by part ("embedding", "mixers", "feed-forward and norms").
  std::vector<std::pair<std::string, int64_t>> parameter_counts() const;

 private:
  class Blocks;

  Dropout dropout_of(int64_t step) const;
  template <class Call>
  at::Tensor through_blocks(at::Tensor x, const Call& call) const;

  LanguageModelConfig config_;
  uint64_t seed_;
  int64_t dropout_step_ = 0, dropout_row_ = 0, staged_step_ = -1;
  at::Tensor staged_seeds_;
  bool checkpointing_ = false;
  at::Tensor embedding_, final_norm_;
  std::shared_ptr<Blocks> blocks_;
};

/// Parameters of all kinds together.
int64_t parameter_count(const LanguageModel& model);

}  // namespace prism
