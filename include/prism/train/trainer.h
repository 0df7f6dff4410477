#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/distributed/ranks.h"
#include "prism/models/recommender.h"
#include "prism/train/checkpoint.h"
#include "prism/train/metric_map.h"
#include "prism/train/recipe.h"
#include "prism/train/run_folder.h"
#include "prism/train/windows.h"

namespace prism {

class RecommenderTask;
class TrainLoop;

/// Validation metrics of a model in evaluation mode.
using Validate = std::function<MetricMap(Recommender&)>;

/// What a step is expected to take.
struct MemoryEstimate {
  int64_t weights = 0;      ///< bytes of weights, gradients and moments
  int64_t activations = 0;  ///< bytes that one step's forward pass keeps, at most
  int64_t total() const { return weights + activations; }
};
MemoryEstimate estimate_memory(const Recipe& recipe, int64_t parameters);

/// Trains a recommender on the training part of a log; repeatable from seed and counters alone.
class Trainer {
 public:
  /// All referents must outlive the trainer. `folder` exists already. `ranks`: the processes that share the
  /// steps, of which only rank 0 writes and validates; nullptr: this one alone.
  Trainer(const Recipe& recipe, const Interactions& log, const Split& split, const RunFolder& folder,
          std::shared_ptr<Recommender> model, c10::Device device, std::shared_ptr<Ranks> ranks = nullptr);
  ~Trainer();

  /// Continues from the folder's last checkpoint; from the beginning where the run was killed before its
  /// first. Error for a checkpoint of another run or of other settings.
  void resume();
  /// Trains to the end: all epochs, or no better validation for `patience` of them. Returns 0, or the number
  /// of the signal that stopped it after the step in progress; the folder can be resumed then.
  int run(const Validate& validate);
  /// Leaves the weights of the best epoch in the model.
  void load_best();

  /// Seconds that an epoch will take, from `steps` real steps after one more that warms up. Spoils the model.
  double measure_epoch(int64_t steps);

  const TrainState& state() const;
  int64_t steps_per_epoch() const;
  const std::vector<Window>& windows() const;

 private:
  const Recipe& recipe_;
  std::unique_ptr<RecommenderTask> task_;
  std::unique_ptr<TrainLoop> loop_;
};

}  // namespace prism
