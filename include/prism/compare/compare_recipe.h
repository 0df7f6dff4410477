#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "prism/core/config.h"
#include "prism/train/probe.h"
#include "prism/train/recipe.h"

namespace prism {

enum class CompareTask { kRecommendation, kProbe, kSpeed };
template <>
struct EnumNames<CompareTask> {
  static constexpr std::array names{"recommendation", "probe", "speed"};
};

/// Section [compare].
struct CompareConfig {
  CompareTask task = CompareTask::kRecommendation;
  std::vector<std::string> variants = {"prism", "gated_delta_net", "softmax_attention"};
  std::vector<int64_t> seeds = {1, 2, 3};
  std::vector<std::string> probes = {"all"};
  bool match = true;
  double tolerance = 0.03;
  std::string reference = {}, base = {}, out = {};
  int64_t jobs = 1;
  static constexpr auto fields = std::tuple{
      Field{"task", &CompareConfig::task, Any{}, "",
            "a recommendation log, probes, or the speed of one layer by sequence length"},
      Field{"variants", &CompareConfig::variants, Any{}, "",
            "each \"MIXER setting=value ...\", or \"LABEL: MIXER setting=value ...\"; \"all\": every mixer"},
      Field{"seeds", &CompareConfig::seeds, Range{0, 9e15}, "",
            "each variant is trained once with each of them"},
      Field{"probes", &CompareConfig::probes, Any{}, "", "tasks of a comparison on probes; all: all nine"},
      Field{"match", &CompareConfig::match, Any{}, "",
            "give every variant the parameters of the reference: by its FFN width, else by its model width"},
      Field{"tolerance", &CompareConfig::tolerance, Range{0, 1}, "",
            "largest difference in parameters, as a share of the reference's"},
      Field{"reference", &CompareConfig::reference, Any{}, "",
            "label of the variant whose parameters the others get; default: the first"},
      Field{"base", &CompareConfig::base, Any{}, "",
            "recipe whose settings hold where this one is silent; a path beside this recipe"},
      Field{"out", &CompareConfig::out, Any{}, "", "folder; default runs/compare"},
      Field{"jobs", &CompareConfig::jobs, Range{1, 1024}, "processes",
            "cells measured at a time; accuracies do not depend on it, times do"}};
};

/// Section [speed].
struct SpeedConfig {
  std::vector<int64_t> lengths = {2048, 4096, 8192, 16384, 32768};
  int64_t sequences = 1;
  double seconds = 2;
  static constexpr auto fields =
      std::tuple{Field{"lengths", &SpeedConfig::lengths, Range{1, 1e6}, "tokens", "of the sequences"},
                 Field{"sequences", &SpeedConfig::sequences, Range{1, 1e6}, "", "in one pass"},
                 Field{"seconds", &SpeedConfig::seconds, Range{0, 1e6}, "s",
                       "for each median; slow variants take three passes all the same"}};
};

/// One line of [compare] variants.
struct Variant {
  std::string label, mixer;
  std::vector<std::pair<std::string, std::string>> settings = {};
};
/// Usage errors name the word that is no setting=value.
Variant parse_variant(const std::string& text);

/// A comparison as a file: a recipe whose every section applies to all variants, with a section [compare]
/// and, for their tasks, [probe] and [speed]. [mixer] has the settings of [model] mixer, each of which
/// applies to all variants' mixers that have one of its name.
class CompareRecipe {
 public:
  explicit CompareRecipe(const std::string& mixer = "prism");
  CompareRecipe(const CompareRecipe&) = delete;
  CompareRecipe& operator=(const CompareRecipe&) = delete;

  /// The comparison of a TOML file, over its base recipe.
  static std::unique_ptr<CompareRecipe> read(const std::filesystem::path& path);

  /// Sets in `target`, the settings of one variant's own recipe, what this recipe or the variant chose.
  void apply(const Variant& variant, Settings& target) const;
  /// Only what was chosen, as TOML that read() takes; the base is part of it.
  std::string to_toml() const;

  CompareConfig compare;
  ProbeConfig probe;
  SpeedConfig speed;
  Recipe recipe;      ///< holds the values of the other sections
  Settings settings;  ///< bound to the members above
};

}  // namespace prism
