#include "train/train_loop.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "prism/core/clock.h"
#include "prism/core/error.h"
#include "prism/core/interrupt.h"
#include "prism/core/log.h"
#include "prism/core/progress.h"
#include "prism/core/text.h"
#include "train/autocast.h"

namespace prism {
namespace {

constexpr int64_t kStepsARow = 50;   // a step row of the logs
constexpr int64_t kStepsALook = 10;  // figures are read from the device so often

}  // namespace

void require_shareable(int64_t batch_size, const Ranks* ranks) {
  if (ranks && batch_size < ranks->size())
    usage_error("train: a batch of {} cannot be shared by {} processes; raise --batch-size or start fewer",
                batch_size, ranks->size());
}

TrainLoop::TrainLoop(TrainTask& task, TrainLoopOptions options, c10::Device device, const RunFolder* folder)
    : task_(task),
      options_(std::move(options)),
      device_(device),
      folder_(folder),
      updater_(task, options_.update, device, options_.ranks.get()) {
  state_.seed = options_.seed;
}

TrainLoop::~TrainLoop() = default;

bool TrainLoop::finished() const {
  const bool stale = options_.patience > 0 && state_.stale >= options_.patience;
  return state_.epoch >= task_.rounds() || stale || reached_;
}

int TrainLoop::run() try {
  const InterruptGuard interrupts;
  if (options_.ranks) start_together();
  if (writes() && !logs_) logs_ = std::make_unique<RunLogs>(*folder_, 0, 0);
  clock_ = saved_at_ = steady_seconds();
  return train_rounds();
} catch (const LostRank& error) {
  if (!writes()) throw;
  throw LostRank(fmt::format(
      "{}; {}", error.what(),
      saved_step_ > 0 ? fmt::format("{} holds step {}, go on from there with --resume {}",
                                    folder_->last().string(), saved_step_, folder_->root().string())
                      : "there was no checkpoint yet"));
}

int TrainLoop::train_rounds() {
  while (!finished()) {
    if (const int signal = train_round()) return signal;
    close_round();
    if (const int signal = signal_of_all()) return signal;
  }
  return 0;
}

/// All ranks stand at one step and begin with rank 0's weights: drawn on another kind of
/// processor they may differ in their last bits.
void TrainLoop::start_together() {
  Ranks& ranks = *options_.ranks;
  ranks.require_same("the checkpoint", fmt::format("{} {}", state_.epoch, state_.step));
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model_tensors(task_.model())) ranks.broadcast(tensor);
}

/// A signal that reached this rank, or another one: all stop after the same step.
int TrainLoop::signal_of_all() const {
  const int own = InterruptGuard::pending();
  return options_.ranks ? static_cast<int>(options_.ranks->largest(own)) : own;
}

/// From state_.window to the end of the round's units.
int TrainLoop::train_round() {
  task_.open_round(state_.epoch);
  const int64_t total = task_.units(state_.epoch);
  const std::string label = task_.label(state_.epoch);
  std::optional<Progress> progress;
  if (!label.empty()) progress.emplace(label, task_.positions(0, total), "positions");
  if (progress) progress->advance(task_.positions(0, state_.window));
  round_started_ = steady_seconds();
  round_started_positions_ = state_.positions;
  task_.model().train();
  while (state_.window < total) {
    const int64_t first = state_.window, count = std::min(options_.batch_size, total - first);
    take_step(first, count);
    state_.window += count;
    const int signal = signal_of_all();  // before look(), where a GPU would wait for a rank that is gone
    const bool looks = state_.step % kStepsALook == 0 || state_.window == total || signal;
    if (looks) look();
    if (progress)
      progress->advance(task_.positions(first, count), looks ? fmt::format("loss {:.4f}", mean_loss()) : "");
    if (writes() && (signal || checkpoint_due())) save_last();
    if (signal) return signal;
  }
  return 0;
}

void TrainLoop::take_step(int64_t first, int64_t count) {
  updater_.step(first, count, state_.step);
  ++state_.step;
}

double TrainLoop::mean_loss() const { return state_.loss_sum / static_cast<double>(state_.positions); }

/// Reads the figures of the steps since the last look; waits for the device.
void TrainLoop::look() {
  for (const StepFigures& figures : updater_.take_figures()) account(figures);
}

void TrainLoop::account(const StepFigures& figures) {
  const bool skipped = !figures.is_finite();
  if (skipped) {
    report_skipped(figures);
  } else {
    skipped_in_a_row_ = 0;
    state_.loss_sum += figures.loss * static_cast<double>(figures.positions);
    state_.positions += figures.positions;
  }
  if (logs_ && (figures.step % kStepsARow == 0 || figures.step == 1 || skipped))
    logs_->add(StepRow{.epoch = state_.epoch + 1,
                       .step = figures.step,
                       .loss = figures.loss,
                       .learning_rate = figures.learning_rate,
                       .gradient_norm = figures.gradient_norm,
                       .skipped = skipped});
}

void TrainLoop::report_skipped(const StepFigures& figures) {
  check(++skipped_in_a_row_ < kMostSkipped, "train: the loss is not a number any more at step {}; {}",
        figures.step, task_.divergence_advice());
  warn("train: step {} was skipped: its loss is {}, its gradient norm {}", with_commas(figures.step),
       figures.loss, figures.gradient_norm);
}

void TrainLoop::close_round() {
  const double seconds = steady_seconds() - round_started_;
  const auto trained = static_cast<double>(state_.positions - round_started_positions_);
  EpochRow row{.epoch = ++state_.epoch,
               .step = state_.step,
               .loss = mean_loss(),
               .learning_rate = updater_.rate(state_.step - 1),
               .seconds = seconds,
               .positions_per_second = trained / seconds,
               .valid = {}};
  state_.window = state_.positions = 0;
  state_.loss_sum = 0;
  if (task_.validates_after(state_.epoch)) validate(row);
  if (logs_) logs_->add(row);
  if (leads()) task_.tell(row);
  if (!writes()) return;
  if (row.best) save_best();
  save_last();
}

void TrainLoop::validate(EpochRow& row) {
  if (leads()) {
    task_.model().eval();
    const Autocast as_trained(device_.type(), options_.update.precision);
    row.valid = task_.validate();
    judge(row.valid);
  }
  if (options_.ranks) share_verdict();
  row.best = state_.best_epoch == state_.epoch;
}

/// Early stopping: is this round the best so far?
void TrainLoop::judge(const MetricMap& metrics) {
  const double value = metrics.at(options_.metric);
  const bool better = state_.best_epoch == 0 ||
                      (options_.lower_is_better ? value < state_.best_metric : value > state_.best_metric);
  state_.stale = better ? 0 : state_.stale + 1;
  reached_ = !options_.lower_is_better && value >= options_.stop_at;
  if (!better) return;
  state_.best_metric = value;
  state_.best_epoch = state_.epoch;
}

/// What judge() found on rank 0 decides on all when to stop.
void TrainLoop::share_verdict() {
  const at::Tensor verdict = at::tensor({state_.best_metric, static_cast<double>(state_.best_epoch),
                                         static_cast<double>(state_.stale), static_cast<double>(reached_)},
                                        at::kDouble);
  options_.ranks->broadcast(verdict);
  const auto* value = verdict.const_data_ptr<double>();
  state_.best_metric = value[0];
  state_.best_epoch = static_cast<int64_t>(value[1]);
  state_.stale = static_cast<int64_t>(value[2]);
  reached_ = value[3] != 0;
}

bool TrainLoop::checkpoint_due() const {
  const bool by_steps = options_.checkpoint_steps > 0 && state_.step % options_.checkpoint_steps == 0;
  const bool by_time =
      options_.checkpoint_minutes > 0 && steady_seconds() - saved_at_ >= 60 * options_.checkpoint_minutes;
  return by_steps || by_time;
}

Checkpoint TrainLoop::checkpoint() const {
  Checkpoint checkpoint{.state = state_, .settings = options_.settings, .tensors = {}};
  store_tensors(model_tensors(task_.model()), "model.", checkpoint);
  task_.complete(checkpoint);
  return checkpoint;
}

/// Everything that resume() needs. Written after the rows that it remembers are on the disk.
void TrainLoop::save_last() {
  look();
  const double now = steady_seconds();
  state_.seconds += now - clock_;
  clock_ = saved_at_ = now;
  logs_->sync();
  state_.metrics_bytes = logs_->metrics_bytes();
  state_.events_bytes = logs_->events_bytes();
  Checkpoint whole = checkpoint();
  store_tensors(updater_.optimiser().state(), "optimiser.", whole);
  write_checkpoint(folder_->last(), whole);
  saved_step_ = state_.step;
}

void TrainLoop::save_best() { write_checkpoint(folder_->best(), checkpoint()); }

void TrainLoop::resume() {
  if (!std::filesystem::exists(folder_->last())) {
    info("{} has no checkpoint yet: starting from the beginning", folder_->root().string());
    return;
  }
  const Checkpoint checkpoint = read_checkpoint(folder_->last());
  const std::string file = folder_->last().string();
  check(checkpoint.state.seed == options_.seed, "{}: made with seed {}, the run's config.toml says {}", file,
        checkpoint.state.seed, options_.seed);
  task_.require_own(checkpoint, file);
  restore_tensors(checkpoint, "model.", model_tensors(task_.model()), file);
  restore_tensors(checkpoint, "optimiser.", updater_.optimiser().state(), file);
  state_ = checkpoint.state;
  saved_step_ = state_.step;
  updater_.optimiser().set_steps(state_.step);
  if (leads()) logs_ = std::make_unique<RunLogs>(*folder_, state_.metrics_bytes, state_.events_bytes);
}

void TrainLoop::load_best() {
  restore_tensors(read_checkpoint(folder_->best()), "model.", model_tensors(task_.model()),
                  folder_->best().string());
  task_.model().eval();
}

double TrainLoop::measure_round(int64_t steps) {
  task_.open_round(0);
  const int64_t units = task_.units(0), available = (units + options_.batch_size - 1) / options_.batch_size;
  const int64_t taken = std::min(steps + 1, available);
  task_.model().train();
  double seconds = 0;
  int64_t positions = 0;
  for (int64_t i = 0; i < taken; ++i) {
    const int64_t first = i * options_.batch_size, count = std::min(options_.batch_size, units - first);
    const double started = steady_seconds();
    take_step(first, count);
    look();
    if (i == 0 && taken > 1) continue;
    seconds += steady_seconds() - started;
    positions += task_.positions(first, count);
  }
  return seconds * static_cast<double>(task_.positions(0, units)) / static_cast<double>(positions);
}

}  // namespace prism
