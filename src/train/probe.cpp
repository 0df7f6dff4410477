#include "prism/train/probe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "prism/core/clock.h"
#include "prism/core/error.h"
#include "prism/core/out_of_memory.h"
#include "prism/ops/softmax_loss.h"
#include "prism/train/train_config.h"
#include "train/train_loop.h"

namespace prism {
namespace {

constexpr int64_t kTestBatch = 256, kBlocks = 2, kWarmup = 100;
constexpr double kClipNorm = 1;

/// Sizes of a task under one setting.
struct Sizes {
  int64_t count, values, width, updates;
};
/// In the order of ProbeTask: solvable, paper.
constexpr Sizes kSizes[][2] = {
    {{2, 8, 64, 10'000}, {4, 16, 16, 10'000}},   // mqar
    {{2, 8, 32, 10'000}, {2, 10, 16, 10'000}},   // poly_recall
    {{2, 8, 64, 10'000}, {3, 16, 16, 10'000}},   // var_tracking
    {{3, 2, 16, 10'000}, {3, 2, 16, 10'000}},    // parity
    {{1, 8, 16, 10'000}, {1, 28, 16, 10'000}},   // local_xor
    {{1, 10, 32, 10'000}, {1, 16, 16, 10'000}},  // modulo_add
    {{1, 8, 16, 10'000}, {1, 16, 16, 10'000}},   // palindrome
    {{1, 16, 16, 10'000}, {1, 16, 16, 10'000}},  // silence_gate
    {{1, 16, 16, 10'000}, {1, 16, 16, 10'000}},  // mux
};

/// Samples packed for the model; `last` are the positions that are scored.
struct ProbeBatch {
  Batch inputs;
  at::Tensor last, labels;

  ProbeBatch to(c10::Device device) const {
    return {.inputs = {.items = inputs.items.to(device), .gaps = {}, .packing = inputs.packing},
            .last = last.to(device),
            .labels = labels.to(device)};
  }
  /// Takes over the samples of `batch`, which is on the host and has as many.
  void take(const ProbeBatch& batch) {
    inputs.items.copy_(batch.inputs.items.pin_memory(), /*non_blocking=*/true);
    labels.copy_(batch.labels.pin_memory(), /*non_blocking=*/true);
  }
};

/// On the host.
ProbeBatch make_batch(const Probe& probe, uint64_t seed, ProbePart part, int64_t first, int64_t count) {
  const int64_t length = probe.shape().length;
  std::vector<int64_t> tokens, labels;
  tokens.reserve(static_cast<size_t>(count * length));
  for (int64_t i = 0; i < count; ++i) {
    const ProbeSample sample = probe.sample(seed, part, static_cast<uint64_t>(first + i));
    tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
    labels.push_back(sample.label);
  }
  const auto lengths = std::vector<int64_t>(static_cast<size_t>(count), length);
  return {.inputs = {.items = at::tensor(tokens, at::kLong), .gaps = {}, .packing = Packing::packed(lengths)},
          .last = at::arange(length - 1, count * length, length, at::kLong),
          .labels = at::tensor(labels, at::kLong)};
}

/// A probe and the model that learns it. A round is what lies between two validations, a unit a sample;
/// update i uses samples [i batch, (i + 1) batch).
class ProbeTraining final : public TrainTask {
 public:
  ProbeTraining(const ProbeRecipe& recipe, ProbeTask task, c10::Device device,
                const std::function<void(int64_t, double)>& told)
      : recipe_(recipe),
        probe_(recipe.probe(task)),
        seed_(static_cast<uint64_t>(recipe.run.seed)),
        device_(device),
        model_(make_probe_model(recipe)),
        told_(told) {
    model_->to(device);
  }

  ProbeResult run() {
    TrainLoop loop(*this, loop_options(), device_, nullptr);
    result_.signal = loop.run();
    result_.updates = loop.state().step;
    result_.positions_per_second = training_ > 0 ? static_cast<double>(trained_) / training_ : 0;
    return finish();
  }

  torch::nn::Module& model() override { return *model_; }
  int64_t rounds() const override {
    return (recipe_.config.updates + recipe_.config.check_every - 1) / recipe_.config.check_every;
  }
  int64_t units(int64_t round) const override {
    const int64_t done = round * recipe_.config.check_every;
    return std::min(recipe_.config.check_every, recipe_.config.updates - done) * recipe_.config.batch;
  }
  void open_round(int64_t round) override {
    opened_ = round * recipe_.config.check_every * recipe_.config.batch;
  }
  int64_t positions(int64_t, int64_t count) const override { return count * recipe_.config.length; }

  bool stage(std::span<const StepPart> parts) override {
    bool repeats = device_.is_cuda() && recipe_.model.model.dropout == 0;
    staged_.resize(parts.size());
    for (const StepPart& part : parts)
      repeats &= place(make_batch(probe_, seed_, ProbePart::kTrain, opened_ + part.first, part.count),
                       staged_[static_cast<size_t>(part.index)]);
    return repeats;
  }
  TaskLoss loss(const StepPart& part) override {
    const ProbeBatch& batch = staged_.at(static_cast<size_t>(part.index));
    model_->set_dropout_step(part.step, part.position);
    const at::Tensor h = model_->forward(batch.inputs).index_select(0, batch.last);
    return {.mean = full_softmax_loss(h, model_->item_vectors(), batch.labels),
            .auxiliary = model_->auxiliary_loss()};
  }

  bool validates_after(int64_t rounds) const override {
    return rounds * recipe_.config.check_every <= recipe_.config.updates;
  }
  MetricMap validate() override {
    return {{kMetric, accuracy(ProbePart::kValid, (recipe_.config.test_samples + 7) / 8)}};
  }
  void tell(const EpochRow& row) override {
    training_ += row.seconds;
    trained_ += positions(0, units(row.epoch - 1));
    if (row.valid.empty()) return;
    result_.curve.emplace_back(row.step, row.valid.at(kMetric));
    if (told_) told_(row.step, row.valid.at(kMetric));
  }
  std::string label(int64_t) const override { return ""; }
  std::string divergence_advice() const override {
    return fmt::format("lower --rate (now {}) of probe {}", recipe_.config.rate, enum_name(probe_.task()));
  }
  std::string memory_advice() const override {
    return fmt::format("lower --batch (now {} sequences)", recipe_.config.batch);
  }

 private:
  static constexpr auto kMetric = "accuracy";

  TrainLoopOptions loop_options() const {
    const RateSchedule schedule{.learning_rate = recipe_.config.rate, .warmup = kWarmup};
    return {.seed = recipe_.run.seed,
            .batch_size = recipe_.config.batch,
            .update = {.clip_norm = kClipNorm,
                       .rate = [schedule, total = recipe_.config.updates](
                                   int64_t step) { return scheduled_rate(schedule, step, total); }},
            .metric = kMetric,
            .stop_at = recipe_.config.stop_at};
  }

  /// Puts a batch on the device; true: where the one before it was.
  bool place(const ProbeBatch& batch, ProbeBatch& staged) const {
    if (device_.is_cuda() && staged.labels.defined() && staged.labels.sizes() == batch.labels.sizes()) {
      staged.take(batch);
      return true;
    }
    staged = batch.to(device_);
    return false;
  }

  double accuracy(ProbePart part, int64_t samples) {
    const at::NoGradGuard no_gradient;
    model_->eval();
    int64_t right = 0;
    for (int64_t first = 0; first < samples; first += kTestBatch) {
      const ProbeBatch batch =
          make_batch(probe_, seed_, part, first, std::min(kTestBatch, samples - first)).to(device_);
      const at::Tensor h = model_->forward(batch.inputs).index_select(0, batch.last);
      right += at::matmul(h, model_->item_vectors().t()).argmax(1).eq(batch.labels).sum().item<int64_t>();
    }
    return static_cast<double>(right) / static_cast<double>(samples);
  }

  ProbeResult finish() {
    const double started = steady_seconds();
    if (!result_.signal) result_.accuracy = accuracy(ProbePart::kTest, recipe_.config.test_samples);
    result_.test_seconds = steady_seconds() - started;
    result_.seconds = steady_seconds() - started_;
    result_.chance = probe_.chance();
    result_.state_size = model_->state_size(recipe_.config.length);
    for (const auto& [part, count] : model_->parameter_counts()) result_.parameters += count;
    return result_;
  }

  const ProbeRecipe& recipe_;
  Probe probe_;
  uint64_t seed_;
  c10::Device device_;
  std::shared_ptr<Recommender> model_;
  std::function<void(int64_t, double)> told_;
  std::vector<ProbeBatch> staged_;    // of this step's parts, on the device
  int64_t opened_ = 0, trained_ = 0;  // first sample of the round, positions of the finished rounds
  double training_ = 0;               // seconds of them
  ProbeResult result_;
  double started_ = steady_seconds();
};

}  // namespace

ProbeRecipe::ProbeRecipe(const std::string& mixer) : model(mixer) {
  model.model.width = 16, model.model.blocks = kBlocks, model.model.dropout = 0;
  settings.bind("run", run);
  settings.bind("probe", config);
  model.bind(settings);
}

void ProbeRecipe::fit_to(ProbeTask task) {
  const Sizes& sizes = kSizes[static_cast<size_t>(task)][static_cast<size_t>(config.setting)];
  const auto choose = [&](const char* name, int64_t& member, int64_t value) {
    if (!settings.is_assigned(name) || (member == 0 && value != 0)) member = value;
  };
  choose("probe.count", config.count, sizes.count);
  choose("probe.values", config.values, sizes.values);
  choose("probe.updates", config.updates, sizes.updates);
  choose("model.width", model.model.width, sizes.width);
  choose("model.max_length", model.model.max_length, config.length);
  for (const Setting& setting : settings.all())
    if (setting.section.starts_with("mixer") && setting.name == "heads" && !setting.assigned)
      setting.assign(int64_t{1});
}

Probe ProbeRecipe::probe(ProbeTask task) const {
  return Probe(task, {.vocabulary = config.vocabulary,
                      .length = config.length,
                      .count = config.count,
                      .values = config.values});
}

std::shared_ptr<Recommender> make_probe_model(const ProbeRecipe& recipe) {
  const at::NoGradGuard no_gradient;
  auto model = std::make_shared<Recommender>(recipe.model, recipe.config.vocabulary,
                                             static_cast<uint64_t>(recipe.run.seed));
  // The recommender's small initial item vectors would be drowned by the first mixer's output.
  const double length = std::sqrt(static_cast<double>(recipe.model.model.width));
  for (const auto& own : model->named_parameters(/*recurse=*/false))
    if (own.key().ends_with("embedding")) own.value().mul_(1 / (own.value().std().item<double>() * length));
  return model;
}

ProbeResult train_probe(const ProbeRecipe& recipe, ProbeTask task, c10::Device device,
                        const std::function<void(int64_t, double)>& told) {
  check(recipe.config.updates > 0, "probe: the recipe was not fitted to the task");
  const auto message = [&] {
    return fmt::format("probe: out of memory; lower --length (now {}), --batch (now {}) or --width (now {})",
                       recipe.config.length, recipe.config.batch, recipe.model.model.width);
  };
  return with_memory_error(message, [&] { return ProbeTraining(recipe, task, device, told).run(); });
}

}  // namespace prism
