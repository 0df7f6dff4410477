#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/distributed/ranks.h"
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
  std::shared_ptr<Ranks> ranks = nullptr;  ///< the processes that share the steps; nullptr: this one alone
};

/// Figures by name: "model", "popularity", "markov".
using FiguresByName = std::vector<std::pair<std::string, std::vector<Metric>>>;

/// What a dry run found out.
struct DryRun {
  int64_t steps_per_epoch = 0, epochs = 0, epochs_done = 0;
  double epoch_seconds = 0;
  int64_t peak_bytes = 0;
  int64_t parameters = 0;
};

struct TrainOutcome {
  int signal = 0;        ///< not 0: stopped by this signal, to be resumed
  bool trained = false;  ///< false after a dry run or a signal, and on ranks but 0
  bool dry_run = false;  ///< estimated, nothing written
  std::filesystem::path folder = {};
  TrainState state = {};
  FiguresByName test = {}, valid = {};
  std::string mixer = {};
  std::string protocol = {};       ///< one sentence: split, ranking, seen filter
  std::string protocol_json = {};  ///< the same as an object
  DryRun estimate = {};            ///< of a dry run
  /// The JSON of results.json; of a dry run its estimate.
  std::string to_json() const;
  /// A table of the headline figures, and a loud line where the model loses to a baseline.
  std::string to_text() const;
};

/// Reads the log, trains by the recipe into a new or resumed run folder and measures the best epoch against
/// the baselines. Messages go to the log as the work proceeds.
TrainOutcome train_recommender(Recipe& recipe, const TrainRequest& request);

}  // namespace prism
