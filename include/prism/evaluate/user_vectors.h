#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "prism/data/interactions.h"
#include "prism/kernels/ranking.h"
#include "prism/models/recommender.h"

namespace prism {

/// What one user did, oldest first.
struct History {
  std::span<const int32_t> items;  ///< at least one
  std::span<const int64_t> times;  ///< one an item, or empty where unknown: all gaps are then 0
};

/// The batch of these histories, each cut to its last `max_length` items, on `device`. A gap is the time
/// since the item before, also where that one is cut off, in whole seconds: times / ticks_per_second. `gaps`
/// false leaves Batch::gaps undefined.
Batch history_batch(std::span<const History> histories, int64_t max_length, bool gaps,
                    int64_t ticks_per_second, c10::Device device);

/// Hidden vectors after the last item of each history, float [histories, D] on the CPU; the score of item i
/// next is its inner product with row i of item_vectors(). Runs the model in evaluation mode, without
/// gradients, on its own device, in batches of about `batch_tokens` items. On the CPU a user's bits do not
/// depend on the other users, on the batch or on the threads. Throws Error for an empty history.
at::Tensor user_vectors(Recommender& model, std::span<const History> histories, int64_t ticks = 1,
                        int64_t batch_tokens = 4096);

/// Units of Interactions::time in a second.
int64_t ticks_per_second(const Interactions& log);

/// The model's item vectors in the layout of the ranking kernel, in float.
kernels::ItemPanels item_panels(Recommender& model);

/// The device that a model's parameters live on.
c10::Device model_device(Recommender& model);

/// Puts a model into evaluation mode for its lifetime.
class EvaluationMode {
 public:
  explicit EvaluationMode(Recommender& model) : model_(model), training_(model.is_training()) {
    model.eval();
  }
  ~EvaluationMode() { model_.train(training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Recommender& model_;
  bool training_;
};

}  // namespace prism
