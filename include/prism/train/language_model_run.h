#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>

#include "prism/distributed/ranks.h"
#include "prism/models/language_model.h"
#include "prism/text/tokenizer.h"
#include "prism/train/checkpoint.h"
#include "prism/train/language_model_recipe.h"
#include "prism/train/metric_map.h"
#include "prism/train/run_folder.h"

namespace prism {

/// How `prism lm train` was called.
struct LanguageModelRequest {
  std::filesystem::path resume = {};  ///< run folder to continue; empty: a new run
  c10::Device device = c10::Device(c10::kCPU);
  std::shared_ptr<Ranks> ranks = nullptr;  ///< the processes that share the steps; nullptr: this one alone
};

/// Of a rank but 0, `parameters` and what follows are empty.
struct LanguageModelOutcome {
  int signal = 0;  ///< not 0: stopped by this signal, to be resumed
  std::filesystem::path folder = {};
  TrainState state = {};
  int64_t parameters = 0, tokens = 0;  ///< trained tokens, over all passes
  MetricMap valid = {};                ///< of the best weights
  /// The JSON of results.json.
  std::string to_json() const;
  std::string to_text() const;
};

/// Trains by the recipe into a new or resumed run folder. Messages go to the log as the work proceeds. The
/// recipe's sizes are filled in first.
LanguageModelOutcome train_language_model(LanguageModelRecipe& recipe, const LanguageModelRequest& request);

/// A run folder opened for use.
struct LanguageModelRun {
  RunFolder folder;
  std::unique_ptr<LanguageModelRecipe> recipe = {};
  std::unique_ptr<Tokenizer> tokenizer = {};
  TrainState state = {};  ///< of the checkpoint that `model` holds
  std::shared_ptr<LanguageModel> model = {};
};

/// Opens a run with its best weights (the last ones, with a warning, before the first validation) on `device`
/// in evaluation mode. Usage error for a folder that is no run; Error for a damaged one.
LanguageModelRun open_language_model(const std::filesystem::path& root, c10::Device device);

}  // namespace prism
