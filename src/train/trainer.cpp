#include "prism/train/trainer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <new>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/progress.h"
#include "prism/core/text.h"
#include "prism/evaluate/baselines.h"
#include "prism/models/losses.h"
#include "prism/train/interrupt.h"
#include "prism/train/run.h"
#include "train/autocast.h"
#include "train/epoch_table.h"
#include "train/run_logs.h"

namespace prism {
namespace {

constexpr int64_t kStepsARow = 50;   // a step row of the logs, and a look at the loss
constexpr int64_t kStepsALook = 10;  // the progress line reads the loss from the device so often

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

NamedTensors trainable(const Recommender& model) {
  NamedTensors parameters;
  for (const auto& item : model.named_parameters())
    if (item.value().requires_grad()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

bool is_out_of_memory(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
         message.find("allocate memory") != std::string::npos ||
         message.find("not enough memory") != std::string::npos;
}

[[noreturn]] void fail_out_of_memory(const TrainConfig& config, int64_t positions) {
  fail(
      "train: out of memory in a step over {} positions; lower --batch-size (now {} windows) or --max-length",
      with_commas(positions), config.batch_size);
}

int64_t count_positions(std::span<const Window> windows) {
  int64_t positions = 0;
  for (const Window& window : windows) positions += window.length;
  return positions;
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const Interactions& log, const Split& split, const RunFolder& folder,
                 std::shared_ptr<Recommender> model, c10::Device device)
    : recipe_(recipe),
      log_(log),
      split_(split),
      folder_(folder),
      model_(std::move(model)),
      device_(device),
      optimiser_(trainable(*model_),
                 {.beta2 = recipe.train.beta2, .weight_decay = recipe.train.weight_decay}),
      windows_(cut_windows(split, log.users.size(), recipe.model.model.max_length)),
      item_counts_(at::tensor(training_counts(log, split), at::kLong).to(device)),
      items_checksum_(checksum_of_names(log.items)),
      loss_sum_(at::scalar_tensor(0, at::TensorOptions(at::kDouble).device(device))) {
  check(!windows_.empty(), "train: no user has two training interactions, so there is nothing to learn from");
  check(!model_->reads_times() || !log.time.empty(),
        "train: the model reads times (time_gaps, or a mixer's time bias), but {} has no timestamps",
        recipe.data.file);
  state_.seed = recipe.run.seed;
}

Trainer::~Trainer() = default;

int64_t Trainer::steps_per_epoch() const {
  return (static_cast<int64_t>(windows_.size()) + recipe_.train.batch_size - 1) / recipe_.train.batch_size;
}

bool Trainer::finished() const {
  const TrainConfig& config = recipe_.train;
  return state_.epoch >= config.epochs || (config.patience > 0 && state_.stale >= config.patience);
}

int Trainer::run(const Validate& validate) {
  const InterruptGuard interrupts;
  if (!logs_) logs_ = std::make_unique<RunLogs>(folder_, 0, 0);
  clock_ = saved_at_ = steady_seconds();
  while (!finished()) {
    if (const int signal = train_epoch()) return signal;
    close_epoch(validate);
    if (const int signal = InterruptGuard::pending()) return signal;
  }
  return 0;
}

/// From state_.window to the end of the epoch's windows.
int Trainer::train_epoch() {
  const std::vector<Window> order = shuffled_windows(windows_, recipe_.run.seed, state_.epoch);
  const std::span<const Window> windows(order);
  const auto total = static_cast<int64_t>(windows.size());
  Progress progress(fmt::format("epoch {}", state_.epoch + 1), count_positions(windows), "positions");
  progress.advance(state_.positions);
  epoch_started_ = steady_seconds();
  epoch_started_positions_ = state_.positions;
  model_->train();
  while (state_.window < total) {
    const int64_t count = std::min(recipe_.train.batch_size, total - state_.window);
    const auto batch = windows.subspan(static_cast<size_t>(state_.window), static_cast<size_t>(count));
    train_step(batch);
    state_.window += count;
    const bool look = state_.step % kStepsALook == 0 || state_.window == total;
    progress.advance(
        count_positions(batch),
        look ? fmt::format("loss {:.4f}", read_loss_sum() / static_cast<double>(state_.positions)) : "");
    const int signal = InterruptGuard::pending();
    if (signal || checkpoint_due()) save_last();
    if (signal) return signal;
  }
  return 0;
}

void Trainer::train_step(std::span<const Window> windows) try {
  const TrainConfig& config = recipe_.train;
  const TrainBatch batch = make_batch(log_, split_, windows, model_->reads_times(), device_);
  const int64_t positions = batch.targets.size(0);
  model_->set_dropout_step(state_.step);
  at::Tensor loss;
  {
    const Autocast autocast(device_.type(), config.precision);
    const at::Tensor h_ND = model_->forward(batch.inputs);
    loss = next_item_loss(recipe_.loss, h_ND, model_->item_vectors(), batch.targets, item_counts_,
                          static_cast<uint64_t>(recipe_.run.seed), state_.step);
  }
  const at::Tensor auxiliary = model_->auxiliary_loss();
  (auxiliary.defined() ? loss + auxiliary : loss).backward();
  const at::Tensor norm = clip_gradients(optimiser_.parameters(), config.clip_norm);
  const double rate = learning_rate_at(config, state_.step, config.epochs * steps_per_epoch());
  optimiser_.step(rate);
  optimiser_.zero_grad();
  loss_sum_ += loss.detach() * static_cast<double>(positions);
  state_.positions += positions;
  ++state_.step;
  if (logs_ && (state_.step % kStepsARow == 0 || state_.step == 1))
    logs_->add({.epoch = state_.epoch + 1,
                .step = state_.step,
                .loss = loss.item<double>(),
                .learning_rate = rate,
                .gradient_norm = norm.item<double>()});
} catch (const c10::Error& error) {
  if (is_out_of_memory(error)) fail_out_of_memory(recipe_.train, count_positions(windows));
  throw;
} catch (const std::bad_alloc&) {
  fail_out_of_memory(recipe_.train, count_positions(windows));
}

double Trainer::read_loss_sum() {
  state_.loss_sum = loss_sum_.item<double>();
  check(std::isfinite(state_.loss_sum),
        "train: the loss is not a number any more at step {}; lower --learning-rate (now {}) or --clip-norm "
        "(now {}), or use --precision fp32",
        state_.step, recipe_.train.learning_rate, recipe_.train.clip_norm);
  return state_.loss_sum;
}

void Trainer::close_epoch(const Validate& validate) {
  const double seconds = steady_seconds() - epoch_started_;
  const int64_t trained = state_.positions - epoch_started_positions_;
  EpochRow row{.epoch = ++state_.epoch,
               .step = state_.step,
               .loss = read_loss_sum() / static_cast<double>(state_.positions),
               .learning_rate =
                   learning_rate_at(recipe_.train, state_.step - 1, recipe_.train.epochs * steps_per_epoch()),
               .seconds = seconds,
               .positions_per_second = static_cast<double>(trained) / seconds,
               .valid = {}};
  state_.window = state_.positions = 0;
  state_.loss_sum = 0;
  loss_sum_.zero_();
  if (state_.epoch % recipe_.train.eval_every == 0 || state_.epoch == recipe_.train.epochs) {
    model_->eval();
    row.valid = validate(*model_);
    judge(row.valid);
    row.best = state_.best_epoch == state_.epoch;
  }
  logs_->add(row);
  info("{}", epoch_table_row(row, recipe_.train.metric));
  if (row.best) save_best();
  save_last();
}

/// Early stopping: is this epoch the best so far?
void Trainer::judge(const MetricMap& metrics) {
  const std::string& metric = recipe_.train.metric;
  const double value = metrics.at(metric);
  check(!std::isnan(value),
        "train: {} does not exist on this log (an AUC without negatives?); choose another --metric", metric);
  const bool lower_is_better = metric == "mean_rank";
  const bool better =
      state_.best_epoch == 0 || (lower_is_better ? value < state_.best_metric : value > state_.best_metric);
  state_.stale = better ? 0 : state_.stale + 1;
  if (!better) return;
  state_.best_metric = value;
  state_.best_epoch = state_.epoch;
}

bool Trainer::checkpoint_due() const {
  const TrainConfig& config = recipe_.train;
  const bool by_steps = config.checkpoint_steps > 0 && state_.step % config.checkpoint_steps == 0;
  const bool by_time =
      config.checkpoint_minutes > 0 && steady_seconds() - saved_at_ >= 60 * config.checkpoint_minutes;
  return by_steps || by_time;
}

/// Everything that resume() needs. Written after the rows that it remembers are on the disk.
void Trainer::save_last() {
  read_loss_sum();
  const double now = steady_seconds();
  state_.seconds += now - clock_;
  clock_ = saved_at_ = now;
  logs_->sync();
  state_.metrics_bytes = logs_->metrics_bytes();
  state_.events_bytes = logs_->events_bytes();
  Checkpoint checkpoint{
      .state = state_, .settings = recipe_.settings.to_json(), .items = items_checksum_, .tensors = {}};
  store_tensors(model_tensors(*model_), "model.", checkpoint);
  checkpoint.tensors["item_counts"] = item_counts_;
  store_tensors(optimiser_.state(), "optimiser.", checkpoint);
  write_checkpoint(folder_.last(), checkpoint);
}

void Trainer::save_best() {
  Checkpoint checkpoint{
      .state = state_, .settings = recipe_.settings.to_json(), .items = items_checksum_, .tensors = {}};
  store_tensors(model_tensors(*model_), "model.", checkpoint);
  checkpoint.tensors["item_counts"] = item_counts_;
  write_checkpoint(folder_.best(), checkpoint);
}

void Trainer::resume() {
  if (!std::filesystem::exists(folder_.last())) {
    info("{} has no checkpoint yet: starting from the beginning", folder_.root().string());
    return;
  }
  const Checkpoint checkpoint = read_checkpoint(folder_.last());
  const std::string file = folder_.last().string();
  check(checkpoint.state.seed == recipe_.run.seed, "{}: made with seed {}, the run's config.toml says {}",
        file, checkpoint.state.seed, recipe_.run.seed);
  recipe_.check_resumable(checkpoint.settings, file);
  const auto counts = checkpoint.tensors.find("item_counts");
  check(counts != checkpoint.tensors.end() && at::equal(counts->second, item_counts_.cpu()),
        "{}: belongs to a run on another log", file);
  restore_tensors(checkpoint, "model.", model_tensors(*model_), file);
  restore_tensors(checkpoint, "optimiser.", optimiser_.state(), file);
  state_ = checkpoint.state;
  optimiser_.set_steps(state_.step);
  loss_sum_.fill_(state_.loss_sum);
  logs_ = std::make_unique<RunLogs>(folder_, state_.metrics_bytes, state_.events_bytes);
}

void Trainer::load_best() {
  restore_tensors(read_checkpoint(folder_.best()), "model.", model_tensors(*model_), folder_.best().string());
  model_->eval();
}

double Trainer::measure_epoch(int64_t steps) {
  const std::vector<Window> order = shuffled_windows(windows_, recipe_.run.seed, 0);
  const int64_t available = std::min(steps + 1, steps_per_epoch());
  model_->train();
  double started = 0, seconds = 0;
  int64_t positions = 0;
  for (int64_t i = 0; i < available; ++i) {
    const auto begin = static_cast<size_t>(i * recipe_.train.batch_size);
    const auto end = std::min(begin + static_cast<size_t>(recipe_.train.batch_size), order.size());
    const auto batch = std::span<const Window>(order).subspan(begin, end - begin);
    started = steady_seconds();
    train_step(batch);
    read_loss_sum();  // waits for the device
    if (i == 0 && available > 1) continue;
    seconds += steady_seconds() - started;
    positions += count_positions(batch);
  }
  return seconds * static_cast<double>(count_positions(windows_)) / static_cast<double>(positions);
}

MemoryEstimate estimate_memory(const Recipe& recipe, int64_t parameters) {
  // Floats that a block keeps for backward, a position and channel: measured on the PRISM block with L = 2
  // and on the SASRec block (resident size over a step), rounded up.
  constexpr int64_t kFloatsABlock = 60, kFloatsOutside = 12;
  const RecommenderConfig& model = recipe.model.model;
  const double positions = double(recipe.train.batch_size) * double(model.max_length);
  const double bytes =
      positions * double(model.width) * double(model.blocks * kFloatsABlock + kFloatsOutside) * 4;
  constexpr double kMost = 0x1p62;  // no machine has it; an int64 does
  return {.weights = parameters * 4 * int64_t{sizeof(float)},
          .activations = static_cast<int64_t>(std::min(bytes, kMost))};
}

}  // namespace prism
