#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "prism/compare/compare_recipe.h"
#include "prism/models/recommender.h"
#include "prism/train/train_config.h"

namespace prism {

/// Section [train], as much of it as the speed of a layer depends on.
struct SpeedTrainConfig {
  Precision precision = Precision::kFp32;
  static constexpr auto fields =
      std::tuple{Field{"precision", &SpeedTrainConfig::precision, Any{}, "", "bf16: of matrix products"}};
};

/// Everything that defines a measurement of one mixer layer: sections [run], [speed], [train], [model] and
/// [mixer].
class SpeedRecipe {
 public:
  explicit SpeedRecipe(const std::string& mixer = "prism");
  SpeedRecipe(const SpeedRecipe&) = delete;
  SpeedRecipe& operator=(const SpeedRecipe&) = delete;

  RunConfig run;
  SpeedConfig config;
  SpeedTrainConfig train;
  ModelSpec model;
  Settings settings;  ///< bound to the members above
};

struct LayerSpeed {
  double forward_tokens = 0;  ///< a second, without gradients
  double train_tokens = 0;    ///< a second, forward and backward
  double step_seconds = 0;    ///< one more token for every sequence, after `length` tokens
  int64_t parameters = 0;     ///< of the layer
  int64_t state_size = 0;     ///< floats a sequence after `length` tokens
};

/// One layer (the mixer of the first block, with the input convolution where the recipe has one; for a mixer
/// that is a whole block the block) on config.sequences random sequences of `length` tokens. Medians of at
/// least three passes after some to warm up; on a GPU passes are replayed as graphs, as the steps of a
/// training are, where they can be recorded.
LayerSpeed measure_layer(const SpeedRecipe& recipe, int64_t length, c10::Device device);

}  // namespace prism
