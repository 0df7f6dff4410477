#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "prism/compare/compare_recipe.h"
#include "prism/compare/match.h"

namespace prism {

/// Section [cell]: which one it is.
struct CellConfig {
  CompareTask task = CompareTask::kRecommendation;
  std::string variant, item, log;
  MatchedBy matched = MatchedBy::kNothing;
  static constexpr auto fields = std::tuple{
      Field{"task", &CellConfig::task, Any{}, "", "what is measured"},
      Field{"variant", &CellConfig::variant, Any{}, "", "label of the variant"},
      Field{"item", &CellConfig::item, Any{}, "", "the probe or the length; empty with a recommendation log"},
      Field{"log", &CellConfig::log, Any{}, "", "fingerprint of the recommendation log"},
      Field{"matched", &CellConfig::matched, Any{}, "", "how the model got the reference's parameters"}};
};

/// One measurement, as the files from which a process can run it knowing nothing else.
struct Cell {
  CellConfig config;
  int64_t seed = 0;
  std::filesystem::path path = {};  ///< its folder below the comparison's "cells"
  std::string cell_toml = {};       ///< section [cell]
  std::string recipe_toml = {};     ///< every setting; with a recommendation log `prism train` takes it
};

/// The model of a variant on an item.
struct PlannedModel {
  std::string variant, mixer, item;
  ParameterCount parameters;
  MatchedBy matched;
  int64_t width, ffn_width;  ///< ffn_width 0: the mixer brings its own FFN, or there is none
};

struct Plan {
  std::vector<PlannedModel> models;  ///< item by item, in the order of the variants
  std::vector<Cell> cells;           ///< seed by seed, so that an interrupted comparison is a fair one
};

/// The variants of a recipe; "all" stands for every mixer that the program knows. Usage error where two have
/// one name.
std::vector<Variant> variants_of(const CompareRecipe& recipe);

/// Expands variants x items x seeds with matched parameters. Reads the log where the task has one. Usage
/// errors for variants that do not exist, do not fit or cannot be matched.
Plan plan_comparison(const CompareRecipe& recipe);

}  // namespace prism
