#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "prism/distributed/ranks.h"
#include "prism/train/optimiser.h"
#include "prism/train/train_config.h"
#include "train/step_figures.h"
#include "train/train_task.h"

namespace prism {

class GradientBuckets;
class RecordedStep;

/// How the weights are updated.
struct UpdateOptions {
  AdamW::Options optimiser = {};
  double clip_norm = 1;       ///< 0 leaves gradients alone
  int64_t micro_batches = 1;  ///< forward passes that share an update
  Precision precision = Precision::kFp32;
  Share share = Share::kSequences;  ///< kTokens: all ranks take all micro-batches, the task its share of them
  bool record = true;               ///< on a GPU: steps that repeat are recorded once and replayed
  std::function<double(int64_t step)> rate = {};  ///< learning rate of a step, the first being 0
};

/// Optimiser steps: forward and backward of the micro-batches, clipping, learning rate, update. A step whose
/// loss or gradient is not finite leaves weights and moments as they are; its figures say so. Several ranks
/// share the micro-batches of a step, or the tokens of each, evenly and add up their gradients, so all make
/// the same update.
class Updater {
 public:
  /// `ranks`: nullptr for one process; it must outlive the updater.
  Updater(TrainTask& task, UpdateOptions options, c10::Device device, Ranks* ranks = nullptr);
  ~Updater();

  /// Step `step` (the first is 0) over units [first, first + count) of the open round. Error where memory
  /// runs out.
  void step(int64_t first, int64_t count, int64_t step);
  /// Figures of the steps since the last call.
  std::vector<StepFigures> take_figures() { return pending_.take(); }

  /// Whether steps that repeat are replayed from a graph by now.
  bool has_recorded() const;
  double rate(int64_t step) const { return options_.rate(step); }
  AdamW& optimiser() { return optimiser_; }

 private:
  void update(int64_t first, int64_t count, int64_t step);
  std::vector<StepPart> own_parts(int64_t first, int64_t count, int64_t step) const;
  void run_step(const std::vector<StepPart>& parts, int64_t positions);
  at::Tensor backward(const std::vector<StepPart>& parts, int64_t positions);
  at::Tensor backward_of_part(const StepPart& part, double share);

  TrainTask& task_;
  UpdateOptions options_;
  c10::Device device_;
  Ranks* ranks_;
  AdamW optimiser_;
  std::unique_ptr<GradientBuckets> buckets_;  // of several ranks
  std::unique_ptr<RecordedStep> recorded_;    // of a GPU
  at::Tensor loss_, norm_;                    // of the last step
  PendingFigures pending_;
};

}  // namespace prism
