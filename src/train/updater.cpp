#include "train/updater.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "distributed/gradient_buckets.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/text.h"
#include "prism/ops/cuda_kernels.h"
#include "prism/ops/recorded_step.h"
#include "train/autocast.h"

namespace prism {
namespace {

NamedTensors trainable(const torch::nn::Module& model) {
  NamedTensors parameters;
  for (const auto& item : model.named_parameters())
    if (item.value().requires_grad()) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

}  // namespace

Updater::Updater(TrainTask& task, UpdateOptions options, c10::Device device, Ranks* ranks)
    : task_(task),
      options_(std::move(options)),
      device_(device),
      ranks_(ranks),
      optimiser_(trainable(task.model()), options_.optimiser) {
  if (device.is_cuda() && options_.record && !ranks_ && cuda_kernels())
    recorded_ = std::make_unique<RecordedStep>(device, "train");
  if (!ranks_) return;
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : optimiser_.parameters()) parameters.push_back(parameter);
  buckets_ = std::make_unique<GradientBuckets>(std::move(parameters), *ranks_);
}

Updater::~Updater() = default;

bool Updater::has_recorded() const { return recorded_ && recorded_->replays(); }

void Updater::step(int64_t first, int64_t count, int64_t step) {
  const auto message = [&] {
    return fmt::format("train: out of memory in a step over {} positions; {}",
                       with_commas(task_.positions(first, count)), task_.memory_advice());
  };
  with_memory_error(message, [&] { update(first, count, step); });
}

void Updater::update(int64_t first, int64_t count, int64_t step) {
  const std::vector<StepPart> parts = own_parts(first, count, step);
  const int64_t positions = task_.positions(first, count);
  const double rate = options_.rate(step);
  const bool repeats = task_.stage(parts);
  optimiser_.begin_step(rate);
  const auto work = [&] { run_step(parts, positions); };
  if (recorded_)
    recorded_->run(repeats, work);
  else
    work();
  pending_.add({.step = step + 1, .positions = positions, .learning_rate = rate}, loss_, norm_);
}

/// All that a step does on the device.
void Updater::run_step(const std::vector<StepPart>& parts, int64_t positions) {
  optimiser_.zero_grad();
  loss_ = backward(parts, positions);
  norm_ = clip_gradients(optimiser_.parameters(), options_.clip_norm);
  optimiser_.update(at::isfinite(norm_ + loss_).logical_not());
  optimiser_.zero_grad();
}

/// The micro-batches of this rank. A step is cut into a multiple of the ranks that divide them, each taking
/// as many in turn; rank 0 always has one.
std::vector<StepPart> Updater::own_parts(int64_t first, int64_t count, int64_t step) const {
  const bool divided = ranks_ && options_.share == Share::kSequences;
  const int64_t ranks = divided ? ranks_->size() : 1, rank = divided ? ranks_->rank() : 0;
  const int64_t each = (options_.micro_batches + ranks - 1) / ranks, parts = each * ranks;
  const auto begin_of = [&](int64_t part) { return (count * part + parts - 1) / parts; };
  std::vector<StepPart> own;
  for (int64_t part = each * rank; part < each * (rank + 1); ++part) {
    const int64_t begin = begin_of(part), size = begin_of(part + 1) - begin;
    if (size > 0)
      own.push_back(
          {first + begin, size, step, task_.positions(first, begin), static_cast<int64_t>(own.size())});
  }
  return own;
}

/// The mean loss over all positions of the step, of all ranks; every micro-batch counts by its positions.
at::Tensor Updater::backward(const std::vector<StepPart>& parts, int64_t positions) {
  const auto total = static_cast<double>(positions);
  at::Tensor loss;
  for (const StepPart& part : parts) {
    if (buckets_ && &part == &parts.back()) buckets_->arm();
    const double share = static_cast<double>(task_.positions(part.first, part.count)) / total;
    const at::Tensor own = backward_of_part(part, share);
    loss = loss.defined() ? loss + own : own;
  }
  if (!ranks_) return loss;
  if (parts.empty()) buckets_->arm();
  buckets_->finish();
  loss = loss.defined() ? loss.to(at::kDouble) : at::zeros({}, at::dtype(at::kDouble).device(device_));
  ranks_->sum(loss);
  return loss;
}

/// What a part, which is `share` of its step, adds to the loss; its gradients are added to the parameters'.
at::Tensor Updater::backward_of_part(const StepPart& part, double share) {
  TaskLoss loss;
  {
    const Autocast autocast(device_.type(), options_.precision);
    loss = task_.loss(part);
  }
  share *= loss.share;
  const at::Tensor whole = loss.auxiliary.defined() ? loss.mean + loss.auxiliary : loss.mean;
  (share == 1 ? whole : whole * share).backward();
  return share == 1 ? loss.mean.detach() : loss.mean.detach() * share;
}

}  // namespace prism
