#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prism/core/config.h"
#include "prism/mixers/mixer.h"
#include "prism/mixers/mixer_pattern.h"
#include "prism/ops/packing.h"

namespace prism {

struct RecommenderConfig {
  std::string mixer = "prism";
  int64_t width = 64, blocks = 2, ffn_multiple = 4, max_length = 200;
  double dropout = 0.2;
  bool time_gaps = false, cosine = false;
  int64_t ffn_width = 0, input_conv = 0;
  static constexpr auto fields = std::tuple{
      Field{"mixer", &RecommenderConfig::mixer, Any{}, "",
            "sequence mixer of every block, or a pattern that the blocks repeat: prism*3,softmax_attention"},
      Field{"width", &RecommenderConfig::width, Range{1, 65536}, "", "model width D"},
      Field{"blocks", &RecommenderConfig::blocks, Range{1, 1024}, "", "number of blocks"},
      Field{"ffn_multiple", &RecommenderConfig::ffn_multiple, Range{1, 64}, "", "FFN width in units of D"},
      Field{"ffn_width", &RecommenderConfig::ffn_width, Range{0, 1048576}, "",
            "FFN width; 0 means ffn_multiple times D"},
      Field{"input_conv", &RecommenderConfig::input_conv, Range{0, 64}, "tokens",
            "width of a causal convolution with SiLU before every mixer; 0: none"},
      Field{"max_length", &RecommenderConfig::max_length, Range{1, 1000000}, "items",
            "longest history the model reads (T)"},
      Field{"dropout", &RecommenderConfig::dropout, Range{0, 0.99}, "",
            "dropout on the embedding and both residual branches"},
      Field{"time_gaps", &RecommenderConfig::time_gaps, Any{}, "",
            "add an embedding of the log time gap before each item"},
      Field{"cosine", &RecommenderConfig::cosine, Any{}, "",
            "score by cosine: hidden and item vectors have unit length; wants a temperature near 0.05"}};
};

/// Everything that defines a model, as sections [model] and [mixer] of a recipe and of a checkpoint; a
/// pattern of several mixers has a section [mixer.NAME] for each.
class ModelSpec {
 public:
  /// `mixer` is a name or a pattern (mixers/mixer_pattern.h).
  explicit ModelSpec(const std::string& mixer = "prism");
  /// Binds sections "model" and "mixer"; the spec must outlive `settings`.
  void bind(Settings& settings);

  RecommenderConfig model;
  MixerPattern mixer;
};

/// Histories of several users, packed without padding (`packing` is always a packed one).
struct Batch {
  at::Tensor items;  ///< int64 [N], item indices on the model's device
  at::Tensor
      gaps;  ///< int64 [N], seconds since the previous interaction (0 for the first); undefined without times
  Packing packing;
};

/// State of a batch of users inside the model: one entry a block, and the items each user has shown so far.
/// Models whose mixers see times keep the history itself, since the next item's time changes earlier rows.
struct RecommenderState {
  std::vector<MixerState> blocks;
  std::vector<int64_t> lengths;
  std::vector<at::Tensor> items, gaps;  ///< int64 [tokens] a sequence; empty for most models
};

/// Item embedding, N blocks, final norm, output tied to the item embedding.
class Recommender : public torch::nn::Module {
 public:
  /// Weights come from the stream {seed, "weights"}.
  Recommender(const ModelSpec& spec, int64_t items, uint64_t seed);

  /// Hidden vectors h [N,D] after each token; the score of item i next is <h, item_vectors()[i]>.
  /// In training mode dropout draws from the stream {seed, "dropout", step} set by set_dropout_step.
  at::Tensor forward(const Batch& batch);
  /// h [sequences, D] after the last token of each sequence, and the state there. A state that is not empty
  /// is continued. Every sequence needs a token.
  at::Tensor prefill(const Batch& batch, RecommenderState& state);
  /// One more item for each sequence: items [B] (gaps [B] or undefined) -> h [B,D]. An empty state starts the
  /// sequences. Models with learned positions end at max_length: Error beyond it.
  at::Tensor step(const at::Tensor& items, const at::Tensor& gaps, RecommenderState& state);

  /// [items, D], the tied item table as it scores: with features added, if any, and unit rows with `cosine`.
  at::Tensor item_vectors();
  /// `row`: place of the next batch's first token among those of the whole step.
  void set_dropout_step(int64_t step, int64_t row = 0);
  int64_t items() const;
  const RecommenderConfig& config() const;
  /// Whether positions are learned, so that no sequence may be longer than max_length.
  bool has_positions() const;
  /// Whether batches should have gaps: for time_gaps, or for a mixer that sees times.
  bool reads_times() const;
  /// Whether a mixer sees times, so that a step computes the history anew.
  bool revises_history() const;
  /// What the last forward in training mode adds to the loss (a mixer's balance), already weighted; undefined
  /// where nothing does.
  at::Tensor auxiliary_loss() const;
  /// Optional fixed item features [items, F] (text embeddings), projected and added to the item embedding.
  void set_item_features(const at::Tensor& features_IF);
  /// Floats of state a user after `tokens` items.
  int64_t state_size(int64_t tokens) const;
  /// Parameters by part ("item embedding", "block 1 mixer", ...), for the summary.
  std::vector<std::pair<std::string, int64_t>> parameter_counts() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace prism
