#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/models/recommender.h"
#include "prism/train/recipe.h"
#include "prism/train/windows.h"
#include "train/train_task.h"

namespace prism {

/// A recommender and the training part of a log. A round is an epoch, a unit a window.
class RecommenderTask final : public TrainTask {
 public:
  /// All referents must outlive the task. Error where the log has nothing to learn from, or no times that the
  /// model wants.
  RecommenderTask(const Recipe& recipe, const Interactions& log, const Split& split,
                  std::shared_ptr<Recommender> model, c10::Device device);

  torch::nn::Module& model() override { return *model_; }
  int64_t rounds() const override { return recipe_.train.epochs; }
  int64_t units(int64_t) const override { return static_cast<int64_t>(windows_.size()); }
  void open_round(int64_t epoch) override;
  int64_t positions(int64_t first, int64_t count) const override;
  TaskLoss loss(const StepPart& part) override;
  bool validates_after(int64_t epochs) const override;
  MetricMap validate() override;
  void tell(const EpochRow& row) override;
  std::string label(int64_t epoch) const override;
  void complete(Checkpoint& checkpoint) const override;
  void require_own(const Checkpoint& checkpoint, const std::string& file) const override;
  std::string divergence_advice() const override;
  std::string memory_advice() const override;

  void set_validation(std::function<MetricMap(Recommender&)> validate) { validate_ = std::move(validate); }
  const std::vector<Window>& windows() const { return windows_; }

 private:
  std::span<const Window> opened(int64_t first, int64_t count) const;

  const Recipe& recipe_;
  const Interactions& log_;
  const Split& split_;
  std::shared_ptr<Recommender> model_;
  c10::Device device_;
  std::vector<Window> windows_, order_;
  at::Tensor item_counts_;
  std::string items_checksum_;
  std::function<MetricMap(Recommender&)> validate_;
};

}  // namespace prism
