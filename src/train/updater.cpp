#include "train/updater.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>

#include "prism/core/out_of_memory.h"
#include "prism/core/text.h"
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

Updater::Updater(TrainTask& task, UpdateOptions options, c10::Device device)
    : task_(task),
      options_(std::move(options)),
      device_(device),
      optimiser_(trainable(task.model()), options_.optimiser) {}

void Updater::step(int64_t first, int64_t count, int64_t step) {
  const auto message = [&] {
    return fmt::format("train: out of memory in a step over {} positions; {}",
                       with_commas(task_.positions(first, count)), task_.memory_advice());
  };
  with_memory_error(message, [&] { update(first, count, step); });
}

void Updater::update(int64_t first, int64_t count, int64_t step) {
  const at::Tensor loss = backward(first, count, step);
  const at::Tensor norm = clip_gradients(optimiser_.parameters(), options_.clip_norm);
  const double rate = options_.rate(step);
  optimiser_.step(rate, at::isfinite(norm + loss).logical_not());
  optimiser_.zero_grad();
  pending_.add({.step = step + 1, .positions = task_.positions(first, count), .learning_rate = rate}, loss,
               norm);
}

/// The mean loss over all positions of the step; every micro-batch counts by its positions.
at::Tensor Updater::backward(int64_t first, int64_t count, int64_t step) {
  const int64_t parts = std::min(options_.micro_batches, count);
  if (parts == 1) return backward_of_part(first, count, step, 1);
  const auto total = static_cast<double>(task_.positions(first, count));
  at::Tensor loss;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = first + count * part / parts, end = first + count * (part + 1) / parts;
    const double share = static_cast<double>(task_.positions(begin, end - begin)) / total;
    const at::Tensor own = backward_of_part(begin, end - begin, step, share) * share;
    loss = loss.defined() ? loss + own : own;
  }
  return loss;
}

at::Tensor Updater::backward_of_part(int64_t first, int64_t count, int64_t step, double share) {
  TaskLoss loss;
  {
    const Autocast autocast(device_.type(), options_.precision);
    loss = task_.loss(first, count, step);
  }
  const at::Tensor whole = loss.auxiliary.defined() ? loss.mean + loss.auxiliary : loss.mean;
  (share == 1 ? whole : whole * share).backward();
  return loss.mean.detach();
}

}  // namespace prism
