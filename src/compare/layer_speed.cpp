#include "prism/compare/layer_speed.h"

#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "mixers/input_conv.h"
#include "models/seeded_weights.h"
#include "prism/core/clock.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr int64_t kSteps = 16;  // of one timed pass of single tokens

/// Median seconds of `pass`, which returns a tensor that waits for the device when it is read.
double median_seconds(double budget, const std::function<at::Tensor()>& pass) {
  pass().cpu();
  std::vector<double> times;
  const double begin = steady_seconds();
  while (times.size() < 3 || steady_seconds() - begin < budget) {
    const double started = steady_seconds();
    pass().cpu();
    times.push_back(steady_seconds() - started);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

std::shared_ptr<Mixer> make_layer(const SpeedRecipe& recipe) {
  const SeededWeights seeded(static_cast<uint64_t>(recipe.run.seed));
  const RecommenderConfig& model = recipe.model.model;
  std::shared_ptr<Mixer> layer = recipe.model.mixer.of_block(0).build(model.width, model.max_length);
  if (model.input_conv > 0)
    layer = std::make_shared<InputConv>(std::move(layer), model.width, model.input_conv);
  return layer;
}

at::Tensor last_value(const at::Tensor& y) { return y.flatten().select(0, y.numel() - 1).detach(); }

double step_seconds(Mixer& layer, const at::Tensor& x, double budget) {
  const at::NoGradGuard no_gradient;
  MixerState state;
  layer.prefill(x, Packing::rows(), state);
  const at::Tensor token = x.select(1, 0);
  return median_seconds(budget,
                        [&] {
                          at::Tensor y;
                          for (int64_t i = 0; i < kSteps; ++i) y = layer.step(token, state);
                          return last_value(y);
                        }) /
         kSteps;
}

LayerSpeed measured_layer(const SpeedRecipe& recipe, int64_t length, c10::Device device) {
  const std::shared_ptr<Mixer> layer = make_layer(recipe);
  layer->to(device);
  const SeededWeights seeded(static_cast<uint64_t>(recipe.run.seed) + 1);
  const at::Tensor x =
      at::randn({recipe.config.sequences, length, recipe.model.model.width}).to(device).requires_grad_();
  const auto tokens = static_cast<double>(x.size(0) * length);
  LayerSpeed speed;
  for (const auto& parameter : layer->parameters()) speed.parameters += parameter.numel();
  speed.state_size = layer->state_size(length);
  speed.train_tokens = tokens / median_seconds(recipe.config.seconds, [&] {
                         layer->zero_grad();
                         x.mutable_grad() = at::Tensor();
                         layer->forward(x, Packing::rows()).sum().backward();
                         return last_value(x.grad());
                       });
  layer->eval();
  const at::NoGradGuard no_gradient;
  speed.forward_tokens = tokens / median_seconds(recipe.config.seconds, [&] {
                           return last_value(layer->forward(x, Packing::rows()));
                         });
  speed.step_seconds = step_seconds(*layer, x, recipe.config.seconds);
  return speed;
}

}  // namespace

SpeedRecipe::SpeedRecipe(const std::string& mixer) : model(mixer) {
  settings.bind("run", run);
  settings.bind("speed", config);
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
