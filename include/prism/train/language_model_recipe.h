#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>

#include "prism/core/config.h"
#include "prism/models/language_model.h"
#include "prism/train/recipe.h"
#include "prism/train/train_config.h"

namespace prism {

/// Section [data] of a language model's recipe.
struct TokenDataConfig {
  std::string tokens = {}, valid_tokens = {};
  double valid_share = 0.1;
  int64_t length = 512;
  static constexpr auto fields = std::tuple{
      Field{"tokens", &TokenDataConfig::tokens, Any{}, "", "folder of prism lm prepare to train on"},
      Field{"valid_tokens", &TokenDataConfig::valid_tokens, Any{}, "",
            "folder to validate on; empty: the last valid_share of tokens, kept from training"},
      Field{"valid_share", &TokenDataConfig::valid_share, Range{0, 0.9}, "",
            "of the tokens, where valid_tokens is empty"},
      Field{"length", &TokenDataConfig::length, Range{1, 1e8}, "tokens",
            "inputs of a training sequence, and the context of validations"}};
};

/// Section [train] of a language model's recipe.
struct LanguageModelTrainConfig {
  int64_t updates = 1000, batch_size = 16, micro_batches = 1;
  double learning_rate = 1e-3, weight_decay = 0.1, beta2 = 0.95, clip_norm = 1.0;
  int64_t warmup = 100;
  Schedule schedule = Schedule::kCosine;
  double final_rate = 0.1, decay_share = 0.2;
  int64_t validate_every = 200, patience = 0;
  Precision precision = Precision::kFp32;
  bool activation_checkpointing = false;
  Share share = Share::kSequences;
  double checkpoint_minutes = 5;
  int64_t checkpoint_steps = 0;
  std::string out = {};
  using Self = LanguageModelTrainConfig;
  static constexpr auto fields = std::tuple{
      Field{"updates", &Self::updates, Range{1, 1e12}, "steps", "of the optimiser"},
      Field{"batch_size", &Self::batch_size, Range{1, 1e7}, "sequences", "of one step"},
      Field{"micro_batches", &Self::micro_batches, Range{1, 1e7}, "",
            "forward passes that a step is cut into"},
      Field{"learning_rate", &Self::learning_rate, Range{0, 100}, "", "of AdamW, after the warm-up"},
      Field{"weight_decay", &Self::weight_decay, Range{0, 100}, "",
            "of AdamW; spares embeddings, norms and biases"},
      Field{"beta2", &Self::beta2, Range{0, 0.99999}, "", "decay of AdamW's second moment"},
      Field{"clip_norm", &Self::clip_norm, Range{0, 1e9}, "",
            "the gradient's norm is cut to it; 0 leaves gradients alone"},
      Field{"warmup", &Self::warmup, Range{0, 1e9}, "steps", "linear rise of the learning rate"},
      Field{"schedule", &Self::schedule, Any{}, "",
            "learning rate after the warm-up; wsd stays and then falls"},
      Field{"final_rate", &Self::final_rate, Range{0, 1}, "",
            "where the schedule ends, as a share of learning_rate"},
      Field{"decay_share", &Self::decay_share, Range{0, 1}, "",
            "wsd: share of the steps in which the rate falls"},
      Field{"validate_every", &Self::validate_every, Range{1, 1e12}, "steps", "between validations"},
      Field{"patience", &Self::patience, Range{0, 1e6}, "validations",
            "stop after so many without fewer bits per byte; 0 never stops early"},
      Field{"precision", &Self::precision, Any{}, "", "bf16: matrix products in bfloat16, weights stay fp32"},
      Field{"activation_checkpointing", &Self::activation_checkpointing, Any{}, "",
            "keep only the inputs of blocks for backward and compute the rest anew: less memory, one more "
            "forward"},
      Field{"share", &Self::share, Any{}, "",
            "what several processes divide of a step: its sequences, or the tokens of each (long sequences; "
            "prism, gated_delta_net, delta_net, efla, comba, mamba2 and linear_attention without rotary; no "
            "dropout)"},
      Field{"checkpoint_minutes", &Self::checkpoint_minutes, Range{0, 1e6}, "minutes",
            "between checkpoints; 0: only after each validation"},
      Field{"checkpoint_steps", &Self::checkpoint_steps, Range{0, 1e9}, "steps",
            "between checkpoints; 0: by time only"},
      Field{"out", &Self::out, Any{}, "", "run folder to create; default runs/<name of the token folder>"}};
};

/// Everything that defines the training of a language model: sections [run], [data], [model], [mixer] and
/// [train]. A run folder keeps it as config.toml, which is again a recipe.
class LanguageModelRecipe {
 public:
  explicit LanguageModelRecipe(const std::string& mixer = "prism");
  LanguageModelRecipe(const LanguageModelRecipe&) = delete;
  LanguageModelRecipe& operator=(const LanguageModelRecipe&) = delete;

  /// The recipe of a TOML file; its [model] mixer decides which [mixer] keys exist.
  static std::unique_ptr<LanguageModelRecipe> read(const std::filesystem::path& path);
  /// The same from a checkpoint's JSON; `name` opens error messages.
  static std::unique_ptr<LanguageModelRecipe> parse_json(const std::string& json, const std::string& name);

  /// Whether a resumed run may have another value of "section.name".
  static bool may_change_on_resume(const std::string& key);
  RateSchedule rate() const;

  RunConfig run;
  TokenDataConfig data;
  LanguageModelSpec model;
  LanguageModelTrainConfig train;
  Settings settings;  ///< bound to the members above
};

}  // namespace prism
