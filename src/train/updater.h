#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "prism/train/optimiser.h"
#include "prism/train/train_config.h"
#include "train/step_figures.h"
#include "train/train_task.h"

namespace prism {

/// How the weights are updated.
struct UpdateOptions {
  AdamW::Options optimiser = {};
  double clip_norm = 1;       ///< 0 leaves gradients alone
  int64_t micro_batches = 1;  ///< forward passes that share an update
  Precision precision = Precision::kFp32;
  std::function<double(int64_t step)> rate = {};  ///< learning rate of a step, the first being 0
};

/// Optimiser steps: forward and backward of the micro-batches, clipping, learning rate, update. A step whose
/// loss or gradient is not finite leaves weights and moments as they are; its figures say so.
class Updater {
 public:
  Updater(TrainTask& task, UpdateOptions options, c10::Device device);

  /// Step `step` (the first is 0) over units [first, first + count) of the open round. Error where memory
  /// runs out.
  void step(int64_t first, int64_t count, int64_t step);
  /// Figures of the steps since the last call.
  std::vector<StepFigures> take_figures() { return pending_.take(); }

  double rate(int64_t step) const { return options_.rate(step); }
  AdamW& optimiser() { return optimiser_; }

 private:
  void update(int64_t first, int64_t count, int64_t step);
  at::Tensor backward(int64_t first, int64_t count, int64_t step);
  at::Tensor backward_of_part(int64_t first, int64_t count, int64_t step, double share);

  TrainTask& task_;
  UpdateOptions options_;
  c10::Device device_;
  AdamW optimiser_;
  PendingFigures pending_;
};

}  // namespace prism
