#include <algorithm>
#include <cmath>
#include <numbers>

#include "prism/train/train_config.h"

namespace prism {

double learning_rate_at(const TrainConfig& config, int64_t step, int64_t total) {
  if (step < config.warmup)
    return config.learning_rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  const double span = static_cast<double>(std::max<int64_t>(total - config.warmup, 1));
  const double done = std::min(static_cast<double>(step - config.warmup) / span, 1.0);
  switch (config.schedule) {
    case Schedule::kLinear:
      return config.learning_rate * (1 - done);
    case Schedule::kCosine:
      return config.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
    case Schedule::kConstant:
      break;
  }
  return config.learning_rate;
}

}  // namespace prism
