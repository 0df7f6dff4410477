#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace prism {

/// What one optimiser step came to.
struct StepFigures {
  int64_t step = 0;  ///< counts from 1
  int64_t positions = 0;
  double learning_rate = 0, loss = 0, gradient_norm = 0;
  /// Where it does not, the update was skipped.
  bool is_finite() const;
};

/// Figures of the steps since the last look. Loss and norm stay on the device until someone looks, since a
/// GPU that has to answer after every step idles in between.
class PendingFigures {
 public:
  /// loss and norm are scalars on one device; the next step may write over them.
  void add(const StepFigures& known, const at::Tensor& loss, const at::Tensor& norm);
  /// All of them in the order of the steps; waits for the device.
  std::vector<StepFigures> take();

 private:
  std::vector<StepFigures> figures_;
  std::vector<at::Tensor> values_;  // loss and norm of each step
};

}  // namespace prism
