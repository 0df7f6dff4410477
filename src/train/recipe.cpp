#include "prism/train/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"
#include "prism/core/toml.h"

namespace prism {
namespace {

/// Small logs are overfitted within a few epochs: they want short windows, much dropout and small steps.
struct SizeDefaults {
  int64_t interactions, max_length;
  double dropout;
  int64_t batch_size;
};
constexpr SizeDefaults kBySize[] = {
    {300'000, 50, 0.5, 32}, {5'000'000, 200, 0.3, 128}, {std::numeric_limits<int64_t>::max(), 200, 0.2, 128}};

}  // namespace

Recipe::Recipe(const std::string& mixer) : model(mixer) {
  settings.bind("run", run);
  settings.bind("data", data);
  model.bind(settings);
  settings.bind("loss", loss);
  settings.bind("train", train);
  settings.bind("evaluate", evaluate);
}

std::unique_ptr<Recipe> Recipe::read(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  if (has_toml_section(text, path.string(), "compare"))
    usage_error("{} is a comparison; prism compare takes it", path.string());
  if (!peek_toml(text, path.string(), "data.tokens").empty())
    usage_error("{} is the recipe of a language model; its commands are prism lm ...", path.string());
  const std::string mixer = peek_toml(text, path.string(), "model.mixer");
  auto recipe = mixer.empty() ? std::make_unique<Recipe>() : std::make_unique<Recipe>(mixer);
  recipe->settings.parse_toml(text, path.string());
  return recipe;
}

std::unique_ptr<Recipe> Recipe::parse_json(const std::string& json, const std::string& name) {
  const nlohmann::json document = nlohmann::json::parse(json, nullptr, false);
  check(document.is_object() && document.contains("model"),
        "{}: its settings are no JSON object with a model", name);
  auto recipe = std::make_unique<Recipe>(document["model"].value("mixer", "prism"));
  recipe->settings.parse_json(json, name);
  return recipe;
}

bool Recipe::may_change_on_resume(const std::string& key) {
  static constexpr std::string_view kKeys[] = {"data.file",
                                               "data.titles",
                                               "train.epochs",
                                               "train.patience",
                                               "train.eval_every",
                                               "train.checkpoint_minutes",
                                               "train.checkpoint_steps",
                                               "train.out"};
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

void Recipe::check_resumable(const std::string& json, const std::string& file) const {
  check_same_settings(settings.to_json(), json, file, may_change_on_resume);
}

void check_same_settings(const std::string& ours_json, const std::string& theirs_json,
                         const std::string& file, bool (*may_change)(const std::string&)) {
  const auto theirs = nlohmann::ordered_json::parse(theirs_json),
             ours = nlohmann::ordered_json::parse(ours_json);
  for (const auto& [section, values] : ours.items())
    for (const auto& [name, value] : values.items()) {
      if (may_change(fmt::format("{}.{}", section, name)) || !theirs.contains(section)) continue;
      const auto& other = theirs[section];
      check(!other.contains(name) || other[name] == value,
            "{}: was made with {} = {}, the run's config.toml says {}; a resumed run must keep it", file,
            name, other.contains(name) ? other[name].dump() : "", value.dump());
    }
}

std::string Recipe::fit_to(const Interactions& log) {
  const SizeDefaults* fitting = kBySize;
  while (log.size() > fitting->interactions) ++fitting;
  std::string chosen;
  const auto choose = [&](const std::string& section, const char* name, auto& member, auto value) {
    if (settings.is_assigned(section + "." + name)) return;
    member = value;
    chosen += fmt::format("{}{} = {}", chosen.empty() ? "" : ", ", name, value);
  };
  choose("model", "max_length", model.model.max_length, fitting->max_length);
  choose("model", "dropout", model.model.dropout, fitting->dropout);
  choose("train", "batch_size", train.batch_size, fitting->batch_size);
  if (chosen.empty()) return "";
  return fmt::format("chosen for a log of {} interactions: {}", with_commas(log.size()), chosen);
}

}  // namespace prism
