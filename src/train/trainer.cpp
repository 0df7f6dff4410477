#include "prism/train/trainer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "ops/mini_batches.h"
#include "train/recommender_task.h"
#include "train/train_loop.h"

namespace prism {
namespace {

int64_t steps_for(const Recipe& recipe, const RecommenderTask& task) {
  const auto windows = static_cast<int64_t>(task.windows().size());
  return (windows + recipe.train.batch_size - 1) / recipe.train.batch_size;
}

TrainLoopOptions loop_options(const Recipe& recipe, const RecommenderTask& task,
                              std::shared_ptr<Ranks> ranks) {
  const TrainConfig& config = recipe.train;
  return {.seed = recipe.run.seed,
          .batch_size = config.batch_size,
          .update = {.optimiser = {.beta2 = config.beta2, .weight_decay = config.weight_decay},
                     .clip_norm = config.clip_norm,
                     .precision = config.precision,
                     .rate = [&config, total = config.epochs * steps_for(recipe, task)](
                                 int64_t step) { return learning_rate_at(config, step, total); }},
          .metric = config.metric,
          .lower_is_better = config.metric == "mean_rank",
          .patience = config.patience,
          .checkpoint_minutes = config.checkpoint_minutes,
          .checkpoint_steps = config.checkpoint_steps,
          .settings = recipe.settings.to_json(),
          .ranks = std::move(ranks)};
}

/// Floats a position that a block with the mixer of `section` keeps beside those of its channels: rows of the
/// matrices between the tokens of a mini-batch, keys and values that a window brings to each mini-batch,
/// slots. Measured on Titans, TTT-MLP, ATLAS and GSA (resident size over a step), rounded up.
double floats_by_settings(const Settings& settings, const std::string& section,
                          const RecommenderConfig& model) {
  const auto of = [&](const char* name, int64_t absent) {
    const Setting* found = settings.find(section + "." + name);
    return found ? std::get<int64_t>(found->get()) : absent;
  };
  constexpr double kFloatsAToken = 24, kFloatsASlot = 64;
  const auto heads = static_cast<double>(of("heads", 1));
  const int64_t batch = slots_for(of("mini_batch", 0), model.max_length),
                window = slots_for(of("window", 1), model.max_length);
  double keys = 1, power = 1;  // of a token, with ATLAS's polynomial features
  for (int64_t i = 0; i < of("degree", 0); ++i) keys += power *= static_cast<double>(model.width) / heads;
  const double rows = batch > 0 ? static_cast<double>(window - 1) / static_cast<double>(batch) : 0;
  return heads * (kFloatsAToken * static_cast<double>(batch) + rows * keys +
                  kFloatsASlot * static_cast<double>(of("slots", 0)));
}

/// The same of the recipe's hungriest mixer.
double most_floats_by_settings(const Recipe& recipe) {
  double most = 0;
  for (const Setting& setting : recipe.settings.all())
    if (setting.section.starts_with("mixer") && setting.name == "heads")
      most = std::max(most, floats_by_settings(recipe.settings, setting.section, recipe.model.model));
  return most;
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const Interactions& log, const Split& split, const RunFolder& folder,
                 std::shared_ptr<Recommender> model, c10::Device device, std::shared_ptr<Ranks> ranks)
    : recipe_(recipe),
      task_(std::make_unique<RecommenderTask>(recipe, log, split, std::move(model), device)),
      loop_(std::make_unique<TrainLoop>(*task_, loop_options(recipe, *task_, std::move(ranks)), device,
                                        &folder)) {}

Trainer::~Trainer() = default;

void Trainer::resume() { loop_->resume(); }

int Trainer::run(const Validate& validate) {
  task_->set_validation(validate);
  return loop_->run();
}

void Trainer::load_best() { loop_->load_best(); }
double Trainer::measure_epoch(int64_t steps) { return loop_->measure_round(steps); }
const TrainState& Trainer::state() const { return loop_->state(); }
int64_t Trainer::steps_per_epoch() const { return steps_for(recipe_, *task_); }
const std::vector<Window>& Trainer::windows() const { return task_->windows(); }

MemoryEstimate estimate_memory(const Recipe& recipe, int64_t parameters) {
  // Floats that a block keeps for backward, a position and channel: measured on the PRISM block with L = 2
  // and on the SASRec block (resident size over a step), rounded up.
  constexpr int64_t kFloatsABlock = 60, kFloatsOutside = 12;
  const RecommenderConfig& model = recipe.model.model;
  const double positions = double(recipe.train.batch_size) * double(model.max_length);
  const double floats = double(model.width) * double(model.blocks * kFloatsABlock + kFloatsOutside) +
                        double(model.blocks) * most_floats_by_settings(recipe);
  constexpr double kMost = 0x1p62;  // no machine has it; an int64 does
  return {.weights = parameters * 4 * int64_t{sizeof(float)},
          .activations = static_cast<int64_t>(std::min(positions * floats * sizeof(float), kMost))};
}

}  // namespace prism
