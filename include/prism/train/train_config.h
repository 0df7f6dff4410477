#pragma once
#include <cstdint>
#include <string>
#include <tuple>

#include "prism/core/config.h"

namespace prism {

enum class Precision { kFp32, kBf16 };
template <>
struct EnumNames<Precision> {
  static constexpr std::array names{"fp32", "bf16"};
};

enum class Schedule { kConstant, kLinear, kCosine, kWsd };
template <>
struct EnumNames<Schedule> {
  static constexpr std::array names{"constant", "linear", "cosine", "wsd"};
};

/// What several processes divide of a step.
enum class Share { kSequences, kTokens };
template <>
struct EnumNames<Share> {
  static constexpr std::array names{"sequences", "tokens"};
};

/// The learning rate over the steps of a training.
struct RateSchedule {
  double learning_rate = 1e-3;  ///< after the warm-up
  int64_t warmup = 0;           ///< steps of linear rise
  Schedule schedule = Schedule::kConstant;
  double floor = 0;    ///< where the schedule ends, as a share of learning_rate
  double decay = 0.2;  ///< wsd: share of the steps after the warm-up in which the rate falls
};

/// Learning rate of step `step` (the first is 0) of `total` steps.
double scheduled_rate(const RateSchedule& schedule, int64_t step, int64_t total);

/// How a recommender is trained: section [train] of a recipe.
struct TrainConfig {
  int64_t epochs = 200, batch_size = 128;
  double learning_rate = 1e-3, weight_decay = 0.01, beta2 = 0.98, clip_norm = 1.0;
  int64_t warmup = 100;
  Schedule schedule = Schedule::kConstant;
  int64_t eval_every = 1, patience = 10;
  std::string metric = "NDCG@10";
  Precision precision = Precision::kFp32;
  double checkpoint_minutes = 5;
  int64_t checkpoint_steps = 0;
  std::string out = {};
  static constexpr auto fields = std::tuple{
      Field{"epochs", &TrainConfig::epochs, Range{1, 1e6}, "epochs", "passes over the training data at most"},
      Field{"batch_size", &TrainConfig::batch_size, Range{1, 1e6}, "windows",
            "histories (cut to max_length) in one step"},
      Field{"learning_rate", &TrainConfig::learning_rate, Range{0, 100}, "", "of AdamW, after the warm-up"},
      Field{"weight_decay", &TrainConfig::weight_decay, Range{0, 100}, "",
            "of AdamW; spares embeddings, norms and biases"},
      Field{"beta2", &TrainConfig::beta2, Range{0, 0.99999}, "", "decay of AdamW's second moment"},
      Field{"clip_norm", &TrainConfig::clip_norm, Range{0, 1e9}, "",
            "the gradient's norm is cut to it; 0 leaves gradients alone"},
      Field{"warmup", &TrainConfig::warmup, Range{0, 1e9}, "steps", "linear rise of the learning rate"},
      Field{"schedule", &TrainConfig::schedule, Any{}, "",
            "learning rate after the warm-up; linear and cosine reach 0 after the last epoch, wsd stays "
            "until the "
            "last fifth and falls linearly to 0 there"},
      Field{"eval_every", &TrainConfig::eval_every, Range{1, 1e6}, "epochs", "between validations"},
      Field{"patience", &TrainConfig::patience, Range{0, 1e6}, "validations",
            "stop after so many without a better metric; 0 never stops early"},
      Field{"metric", &TrainConfig::metric, Any{}, "", "validation metric that picks the best checkpoint"},
      Field{"precision", &TrainConfig::precision, Any{}, "",
            "bf16: matrix products in bfloat16, weights stay fp32"},
      Field{"checkpoint_minutes", &TrainConfig::checkpoint_minutes, Range{0, 1e6}, "minutes",
            "between checkpoints inside an epoch; 0: only after each epoch"},
      Field{"checkpoint_steps", &TrainConfig::checkpoint_steps, Range{0, 1e9}, "steps",
            "between checkpoints inside an epoch; 0: by time only"},
      Field{"out", &TrainConfig::out, Any{}, "",
            "run folder to create; default runs/<name of the data file>"}};
};

/// scheduled_rate with the settings of `config`; the schedule reaches 0 at `total`.
double learning_rate_at(const TrainConfig& config, int64_t step, int64_t total);

}  // namespace prism
