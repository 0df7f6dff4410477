#include "prism/compare/layer_speed.h"

#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "mixers/input_conv.h"
#include "models/seeded_weights.h"
#include "prism/core/clock.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/text.h"
#include "prism/ops/cuda_kernels.h"
#include "prism/ops/recorded_step.h"
#include "train/autocast.h"

namespace prism {
namespace {

constexpr int64_t kSteps = 16;  // of one timed pass of single tokens

/// Median seconds of passes, each of which gives a tensor that waits for the device when it is read.
class PassTimer {
 public:
  PassTimer(const SpeedRecipe& recipe, c10::Device device)
      : budget_(recipe.config.seconds), device_(device) {}

  double median(const std::function<at::Tensor()>& pass) const {
    return median(pass, device_.is_cuda() && cuda_kernels());
  }
  double median_eager(const std::function<at::Tensor()>& pass) const { return median(pass, false); }

 private:
  double median(const std::function<at::Tensor()>& pass, bool record) const {
    at::Tensor value;
    const auto work = [&] { value = pass(); };
    std::optional<RecordedStep> recorded;
    if (record) recorded.emplace(device_, "speed");
    const auto seconds = [&] {
      const double started = steady_seconds();
      recorded ? recorded->run(true, work) : work();
      value.cpu();
      return steady_seconds() - started;
    };
    for (int i = 0; i < (recorded ? kRecordedAfter : 1); ++i) seconds();
    std::vector<double> times;
    const double begin = steady_seconds();
    while (times.size() < 3 || steady_seconds() - begin < budget_) times.push_back(seconds());
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  static constexpr int kRecordedAfter = 5;  // passes until one is replayed

  double budget_;
  c10::Device device_;
};

std::shared_ptr<Mixer> make_layer(const SpeedRecipe& recipe) {
  const SeededWeights seeded(static_cast<uint64_t>(recipe.run.seed));
  const RecommenderConfig& model = recipe.model.model;
  std::shared_ptr<Mixer> layer = recipe.model.mixer.of_block(0).build(model.width, model.max_length);
  if (model.input_conv > 0)
    layer = std::make_shared<InputConv>(std::move(layer), model.width, model.input_conv);
  return layer;
}

at::Tensor last_value(const at::Tensor& y) { return y.flatten().select(0, y.numel() - 1).detach(); }

/// Steps grow some states, so they run one operation after the other.
double step_seconds(Mixer& layer, const at::Tensor& x, Precision precision, const PassTimer& timer) {
  const at::NoGradGuard no_gradient;
  const Autocast autocast(x.device().type(), precision);
  MixerState state;
  layer.prefill(x, Packing::rows(), state);
  const at::Tensor token = x.select(1, 0);
  return timer.median_eager([&] {
    at::Tensor y;
    for (int64_t i = 0; i < kSteps; ++i) y = layer.step(token, state);
    return last_value(y);
  }) / kSteps;
}

LayerSpeed measured_layer(const SpeedRecipe& recipe, int64_t length, c10::Device device) {
  const std::shared_ptr<Mixer> layer = make_layer(recipe);
  layer->to(device);
  const SeededWeights seeded(static_cast<uint64_t>(recipe.run.seed) + 1);
  const at::Tensor x =
      at::randn({recipe.config.sequences, length, recipe.model.model.width}).to(device).requires_grad_();
  const auto tokens = static_cast<double>(x.size(0) * length);
  const PassTimer timer(recipe, device);
  LayerSpeed speed;
  for (const auto& parameter : layer->parameters()) speed.parameters += parameter.numel();
  speed.state_size = layer->state_size(length);
  const auto forward = [&] {
    const Autocast autocast(device.type(), recipe.train.precision);
    return layer->forward(x, Packing::rows());
  };
  speed.train_tokens = tokens / timer.median([&] {
    layer->zero_grad();
    x.mutable_grad() = at::Tensor();
    forward().sum().backward();
    return last_value(x.grad());
  });
  layer->eval();
  const at::NoGradGuard no_gradient;
  speed.forward_tokens = tokens / timer.median([&] { return last_value(forward()); });
  speed.step_seconds = step_seconds(*layer, x, recipe.train.precision, timer);
  return speed;
}

}  // namespace

SpeedRecipe::SpeedRecipe(const std::string& mixer) : model(mixer) {
  settings.bind("run", run);
  settings.bind("speed", config);
  settings.bind("train", train);
  model.bind(settings);
}

LayerSpeed measure_layer(const SpeedRecipe& recipe, int64_t length, c10::Device device) {
  const auto message = [&] {
    return fmt::format(
        "speed: out of memory in a pass over {} tokens; lower --sequences (now {}) or --lengths",
        with_commas(recipe.config.sequences * length), recipe.config.sequences);
  };
  return with_memory_error(message, [&] { return measured_layer(recipe, length, device); });
}

}  // namespace prism
