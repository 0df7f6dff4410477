#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/data/probes.h"
#include "prism/models/recommender.h"
#include "prism/train/recipe.h"

namespace prism {

/// Where sizes that nobody chose come from: sizes at which the strongest mixer solves the task, or the
/// paper's constrained ones (width 16, 10,000 updates).
enum class ProbeSetting { kSolvable, kPaper };
template <>
struct EnumNames<ProbeSetting> {
  static constexpr std::array names{"solvable", "paper"};
};

/// Section [probe].
struct ProbeConfig {
  ProbeSetting setting = ProbeSetting::kSolvable;
  int64_t vocabulary = 64, length = 128, count = 0, values = 0;
  int64_t updates = 0, batch = 32, check_every = 250, test_samples = 4096;
  double rate = 1e-3, stop_at = 0.999;
  static constexpr auto fields = std::tuple{
      Field{"setting", &ProbeConfig::setting, Any{}, "",
            "sizes where 0 leaves the choice: those at which the strongest mixer solves the task, or the "
            "paper's"},
      Field{"vocabulary", &ProbeConfig::vocabulary, Range{16, 1e6}, "tokens",
            "8 control tokens, half of it data, the rest noise"},
      Field{"length", &ProbeConfig::length, Range{4, 1e6}, "tokens", "of a sequence"},
      Field{
          "count", &ProbeConfig::count, Range{0, 1e5}, "",
          "pairs of mqar, contexts of poly_recall, chains of var_tracking, bits of parity; 0: the setting's"},
      Field{"values", &ProbeConfig::values, Range{0, 1e6}, "",
            "distinct values and, where there are keys, keys; modulus of modulo_add; 0: the setting's"},
      Field{"updates", &ProbeConfig::updates, Range{0, 1e9}, "steps",
            "of the optimiser at most; 0: the setting's"},
      Field{"batch", &ProbeConfig::batch, Range{1, 1e6}, "sequences", "of an update"},
      Field{"rate", &ProbeConfig::rate, Range{0, 100}, "",
            "learning rate of AdamW, after 100 steps of warm-up"},
      Field{"check_every", &ProbeConfig::check_every, Range{1, 1e9}, "steps", "between validations"},
      Field{"test_samples", &ProbeConfig::test_samples, Range{1, 1e9}, "sequences",
            "of the test; a validation has an eighth of them"},
      Field{"stop_at", &ProbeConfig::stop_at, Range{0, 2}, "",
            "validation accuracy at which training stops; above 1: never"}};
};

/// Everything that defines the training of one probe: sections [run], [probe], [model] and [mixer]. The model
/// is the recommender's over the vocabulary: two blocks, without dropout.
class ProbeRecipe {
 public:
  explicit ProbeRecipe(const std::string& mixer = "prism");
  ProbeRecipe(const ProbeRecipe&) = delete;
  ProbeRecipe& operator=(const ProbeRecipe&) = delete;

  /// Fills in what was left to the setting of `task`: count, values, updates, model width; and one head.
  void fit_to(ProbeTask task);
  /// The task at the recipe's sizes. Usage errors where they do not fit.
  Probe probe(ProbeTask task) const;

  RunConfig run;
  ProbeConfig config;
  ModelSpec model;
  Settings settings;  ///< bound to the members above
};

struct ProbeResult {
  int signal = 0;  ///< not 0: stopped by this signal, the figures are those of the moment
  double accuracy = 0, chance = 0;
  int64_t updates = 0, parameters = 0;
  int64_t state_size = 0;  ///< floats a sequence at its end
  double seconds = 0, positions_per_second = 0, test_seconds = 0;
  std::vector<std::pair<int64_t, double>> curve = {};  ///< updates, validation accuracy
};

/// The recommender over the probe's vocabulary with embeddings of unit length, as the recipe describes it.
std::shared_ptr<Recommender> make_probe_model(const ProbeRecipe& recipe);

/// Trains on the task's training stream until validation reaches stop_at or updates run out, then measures
/// the last weights on the test stream. Update i uses samples [i batch, (i + 1) batch): every mixer sees the
/// same data in the same order. Same result on any number of threads. `told` hears of every validation.
ProbeResult train_probe(const ProbeRecipe& recipe, ProbeTask task, c10::Device device,
                        const std::function<void(int64_t updates, double accuracy)>& told = {});

}  // namespace prism
