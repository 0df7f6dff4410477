#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/evaluate/metrics.h"
#include "prism/models/recommender.h"
#include "prism/train/recipe.h"
#include "prism/train/run_folder.h"
#include "prism/train/trainer.h"

namespace prism {

/// How `prism train` was called.
struct TrainRequest {
  std::filesystem::path resume;  ///< run folder to continue; empty: a new run
  std::filesystem::path from;    ///< run folder whose weights and items a new run starts with; empty: none
  bool dry_run = false;          ///< stop after the summaries and an estimate of an epoch's time
  c10::Device device = c10::Device(c10::kCPU);
};

/// Figures by name: the model's mixer, "popularity", "markov".
using FiguresByName = std::vector<std::pair<std::string, std::vector<Metric>>>;

struct TrainOutcome {
  int signal = 0;        ///< not 0: stopped by this signal, to be resumed
  bool trained = false;  ///< false after a dry run or a signal
  std::filesystem::path folder = {};
  TrainState state = {};
  FiguresByName test = {}, valid = {};
  std::string protocol = "";  ///< one sentence: split, ranking, seen filter
  /// The same as the JSON of results.json.
  std::string to_json() const;
  /// A table of the headline figures, and a loud line where the model loses to a baseline.
  std::string to_text() const;
};

/// Reads the log, trains by the recipe into a new or resumed run folder and measures the best epoch against
/// the baselines. Messages go to the log as the work proceeds.
TrainOutcome train_recommender(Recipe& recipe, const TrainRequest& request);

}  // namespace prism
