#include <algorithm>
#include <cmath>
#include <numbers>

#include "prism/train/train_config.h"

namespace prism {
namespace {

/// From 1 to 0 while `done` goes from 0 to 1.
double shape(const RateSchedule& schedule, double done) {
  switch (schedule.schedule) {
    case Schedule::kLinear:
      return 1 - done;
    case Schedule::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
    case Schedule::kWsd:
      return schedule.decay > 0 ? std::min((1 - done) / schedule.decay, 1.0) : 1;
    case Schedule::kConstant:
      break;
  }
  return 1;
}

}  // namespace

double scheduled_rate(const RateSchedule& schedule, int64_t step, int64_t total) {
  if (step < schedule.warmup)
    return schedule.learning_rate * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  const double span = static_cast<double>(std::max<int64_t>(total - schedule.warmup, 1));
  const double done = std::min(static_cast<double>(step - schedule.warmup) / span, 1.0);
  const double share = shape(schedule, done);
  return schedule.learning_rate *
         (schedule.floor > 0 ? schedule.floor + (1 - schedule.floor) * share : share);
}

double learning_rate_at(const TrainConfig& config, int64_t step, int64_t total) {
  return scheduled_rate(
      {.learning_rate = config.learning_rate, .warmup = config.warmup, .schedule = config.schedule}, step,
      total);
}

}  // namespace prism
