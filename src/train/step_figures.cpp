#include "train/step_figures.h"

#include <ATen/ops/stack.h>

#include <cmath>
#include <utility>

namespace prism {

bool StepFigures::is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm); }

void PendingFigures::add(const StepFigures& known, const at::Tensor& loss, const at::Tensor& norm) {
  figures_.push_back(known);
  values_.push_back(loss.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
  values_.push_back(norm.to(loss.device(), at::kDouble, /*non_blocking=*/false, /*copy=*/true));
}

std::vector<StepFigures> PendingFigures::take() {
  if (figures_.empty()) return {};
  const at::Tensor values = at::stack(std::exchange(values_, {})).cpu();
  const auto* value = values.const_data_ptr<double>();
  for (StepFigures& figures : figures_) figures.loss = *value++, figures.gradient_norm = *value++;
  return std::exchange(figures_, {});
}

}  // namespace prism
