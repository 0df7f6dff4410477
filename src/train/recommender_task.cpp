#include "train/recommender_task.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/evaluate/baselines.h"
#include "prism/models/losses.h"
#include "prism/train/run.h"
#include "train/epoch_table.h"

namespace prism {

RecommenderTask::RecommenderTask(const Recipe& recipe, const Interactions& log, const Split& split,
                                 std::shared_ptr<Recommender> model, c10::Device device)
    : recipe_(recipe),
      log_(log),
      split_(split),
      model_(std::move(model)),
      device_(device),
      windows_(cut_windows(split, log.users.size(), recipe.model.model.max_length)),
      item_counts_(at::tensor(training_counts(log, split), at::kLong).to(device)),
      items_checksum_(checksum_of_names(log.items)) {
  check(!windows_.empty(), "train: no user has two training interactions, so there is nothing to learn from");
  check(!model_->reads_times() || !log.time.empty(),
        "train: the model reads times (time_gaps, or a mixer's time bias), but {} has no timestamps",
        recipe.data.file);
}

void RecommenderTask::open_round(int64_t epoch) {
  order_ = shuffled_windows(windows_, static_cast<uint64_t>(recipe_.run.seed), epoch);
}

std::span<const Window> RecommenderTask::opened(int64_t first, int64_t count) const {
  return std::span<const Window>(order_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

int64_t RecommenderTask::positions(int64_t first, int64_t count) const {
  int64_t positions = 0;
  for (const Window& window : opened(first, count)) positions += window.length;
  return positions;
}

TaskLoss RecommenderTask::loss(const StepPart& part) {
  const TrainBatch batch =
      make_batch(log_, split_, opened(part.first, part.count), model_->reads_times(), device_);
  model_->set_dropout_step(part.step, part.position);
  const at::Tensor h_ND = model_->forward(batch.inputs);
  const at::Tensor mean =
      next_item_loss(recipe_.loss, h_ND, model_->item_vectors(), batch.targets, item_counts_,
                     static_cast<uint64_t>(recipe_.run.seed), part.step, part.position);
  return {.mean = mean, .auxiliary = model_->auxiliary_loss()};
}

bool RecommenderTask::validates_after(int64_t epochs) const {
  return epochs % recipe_.train.eval_every == 0 || epochs == recipe_.train.epochs;
}

MetricMap RecommenderTask::validate() {
  MetricMap metrics = validate_(*model_);
  const auto chosen = metrics.find(recipe_.train.metric);
  check(chosen == metrics.end() || !std::isnan(chosen->second),
        "train: {} does not exist on this log (an AUC without negatives?); choose another --metric",
        recipe_.train.metric);
  return metrics;
}

void RecommenderTask::tell(const EpochRow& row) { info("{}", epoch_table_row(row, recipe_.train.metric)); }

std::string RecommenderTask::label(int64_t epoch) const { return fmt::format("epoch {}", epoch + 1); }

void RecommenderTask::complete(Checkpoint& checkpoint) const {
  checkpoint.items = items_checksum_;
  checkpoint.tensors["item_counts"] = item_counts_;
}

void RecommenderTask::require_own(const Checkpoint& checkpoint, const std::string& file) const {
  recipe_.check_resumable(checkpoint.settings, file);
  const auto counts = checkpoint.tensors.find("item_counts");
  check(counts != checkpoint.tensors.end() && at::equal(counts->second, item_counts_.cpu()),
        "{}: belongs to a run on another log", file);
}

std::string RecommenderTask::divergence_advice() const {
  return fmt::format("lower --learning-rate (now {}) or --clip-norm (now {}), or use --precision fp32",
                     recipe_.train.learning_rate, recipe_.train.clip_norm);
}

std::string RecommenderTask::memory_advice() const {
  return fmt::format("lower --batch-size (now {} windows) or --max-length", recipe_.train.batch_size);
}

}  // namespace prism
