#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <span>
#include <string>

#include "prism/train/checkpoint.h"
#include "prism/train/metric_map.h"
#include "train/run_logs.h"

namespace prism {

/// What one forward pass of an optimiser step takes.
struct StepPart {
  int64_t first = 0, count = 0;  ///< units of the open round
  int64_t step = 0;              ///< of the optimiser, the first being 0
  int64_t position =
      0;              ///< place of the first position among those of the whole step; random numbers follow it
  int64_t index = 0;  ///< among the parts of the step that this process takes
};

/// The loss of one forward pass.
struct TaskLoss {
  at::Tensor mean;       ///< scalar: the mean over the positions, which the logs show
  at::Tensor auxiliary;  ///< scalar that is only added for backward; undefined for most models
  double share = 1;      ///< of the part's positions, those behind `mean`; ranks that divide tokens have some
};

/// What a TrainLoop trains: units of data (windows of histories, samples, stretches of text) in rounds, each
/// followed by a validation or not. All of it must follow from the arguments, so that a resumed run repeats
/// the uninterrupted one bit for bit. A round is the `epoch` of states and log rows.
class TrainTask {
 public:
  virtual ~TrainTask() = default;
  virtual torch::nn::Module& model() = 0;

  virtual int64_t rounds() const = 0;
  virtual int64_t units(int64_t round) const = 0;
  /// Puts the units of a round in order; the two below mean this round.
  virtual void open_round(int64_t round) = 0;
  /// Positions with a target in units [first, first + count).
  virtual int64_t positions(int64_t first, int64_t count) const = 0;
  /// Fetches the data of all parts that this process takes of a step, before their losses. true: loss() of
  /// them enqueues on a GPU what it did at the last step for which this was true, on the same addresses, so
  /// the step may be recorded and replayed.
  virtual bool stage(std::span<const StepPart> /*parts*/) { return false; }
  /// Forward pass over a part of a step. Its random numbers depend neither on how the step is cut into parts
  /// nor on the process.
  virtual TaskLoss loss(const StepPart& part) = 0;

  virtual bool validates_after(int64_t rounds_done) const = 0;
  /// Metrics of the model, which is in evaluation mode.
  virtual MetricMap validate() = 0;
  /// Hears of every finished round.
  virtual void tell(const EpochRow& row) = 0;
  /// What the progress line calls a round; "": no progress line.
  virtual std::string label(int64_t round) const = 0;

  /// Adds to a checkpoint what it holds besides model, optimiser and counters.
  virtual void complete(Checkpoint&) const {}
  /// Error where `checkpoint`, of `file`, belongs to another run.
  virtual void require_own(const Checkpoint&, const std::string& /*file*/) const {}

  /// What to do when the loss is no number any more, and when memory runs out: they end a sentence.
  virtual std::string divergence_advice() const = 0;
  virtual std::string memory_advice() const = 0;
};

}  // namespace prism
