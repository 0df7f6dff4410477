#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/data/data_config.h"
#include "prism/data/interactions.h"
#include "prism/models/losses.h"
#include "prism/models/recommender.h"
#include "prism/train/train_config.h"

namespace prism {

/// Section [run].
struct RunConfig {
  int64_t seed = 42;
  static constexpr auto fields = std::tuple{
      Field{"seed", &RunConfig::seed, Range{0, 9e15}, "", "of every random number; --seed sets it too"}};
};

/// Section [evaluate]: how validation and the final table measure.
struct EvaluateConfig {
  bool filter_seen = true;
  std::vector<int64_t> ks = {10, 20, 50, 200, 500};
  static constexpr auto fields =
      std::tuple{Field{"filter_seen", &EvaluateConfig::filter_seen, Any{}, "",
                       "items of the history are no candidates (the target always is)"},
                 Field{"ks", &EvaluateConfig::ks, Range{1, 1e9}, "", "list lengths k of HR@k and NDCG@k"}};
};

/// Error where `theirs`, the settings of checkpoint `file` as JSON, differs from `ours` in anything that a
/// resumed run must keep; `may_change` says of "section.name" whether it may differ.
void check_same_settings(const std::string& ours, const std::string& theirs, const std::string& file,
                         bool (*may_change)(const std::string& key));

/// Everything that defines a training run: sections [run], [data], [model], [mixer], [loss], [train] and
/// [evaluate] of a recipe. A run folder keeps the whole of it as config.toml, which is again a recipe.
class Recipe {
 public:
  explicit Recipe(const std::string& mixer = "prism");
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;

  /// The recipe of a TOML file; its [model] mixer decides which [mixer] keys exist.
  static std::unique_ptr<Recipe> read(const std::filesystem::path& path);
  /// The same from a checkpoint's JSON; `name` opens error messages.
  static std::unique_ptr<Recipe> parse_json(const std::string& json, const std::string& name);

  /// Chooses max_length, dropout and batch_size by the size of the log, unless recipe or flags chose them.
  /// Returns a sentence about it, or "" when nothing was left to choose.
  std::string fit_to(const Interactions& log);

  /// Whether a resumed run may have another value of "section.name": such settings do not touch what has been
  /// computed so far, or the log's fingerprint guards them.
  static bool may_change_on_resume(const std::string& key);
  /// Error where `json`, the settings of checkpoint `file`, differs in anything that a resumed run must keep.
  void check_resumable(const std::string& json, const std::string& file) const;

  RunConfig run;
  DataConfig data;
  ModelSpec model;
  LossConfig loss;
  TrainConfig train;
  EvaluateConfig evaluate;
  Settings settings;  ///< bound to the members above
};

}  // namespace prism
