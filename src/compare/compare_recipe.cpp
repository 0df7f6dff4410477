#include "prism/compare/compare_recipe.h"

#include <fmt/format.h>

#include <sstream>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

/// Sets the setting of the same name of every mixer of `target` that has one.
void set_in_mixers(const Setting& setting, Settings& target) {
  for (const Setting& own : target.all())
    if (own.section.starts_with("mixer") && own.name == setting.name)
      target.set(own.section + "." + own.name, setting.get(), setting.section + "." + setting.name);
}

/// A setting of one variant: of its model, or of those of its mixers that have one of the name; `prism.steps`
/// means one mixer of a pattern. All else is the same for all variants.
void set_in_variant(const std::string& key, const std::string& value, const std::string& where,
                    Settings& target) {
  const Setting* found = target.find(key) ? target.find(key) : target.find("mixer." + key);
  if (!found) return target.set_text(key, value, where);  // an error that names the nearest setting
  if (found->section == "model" && found->name == "mixer")
    usage_error("{}: its mixer is the first word, not a setting", where);
  if (found->section != "model" && !found->section.starts_with("mixer"))
    usage_error(
        "{}: {} is a setting of [{}], which is the same for all variants; theirs are [model] and [mixer]",
        where, key, found->section);
  const bool one = found->section == "model" || key.find('.') != std::string::npos;
  const std::string section = found->section, name = found->name;
  for (const Setting& own : target.all())
    if (own.name == name && (one ? own.section == section : own.section.starts_with("mixer")))
      target.set_text(own.section + "." + name, value, where);
}

}  // namespace

Variant parse_variant(const std::string& text) {
  Variant variant;
  const size_t colon = text.find(": ");
  std::istringstream words(colon == std::string::npos ? text : text.substr(colon + 2));
  words >> variant.mixer;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      usage_error("compare: variant \"{}\": \"{}\" is no setting=value", shortened(text), shortened(word));
    variant.settings.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  if (variant.mixer.empty()) usage_error("compare: variant \"{}\" names no mixer", shortened(text));
  variant.label = colon == std::string::npos ? text : text.substr(0, colon);
  if (variant.label.find_first_not_of(' ') == std::string::npos)
    usage_error("compare: variant \"{}\" has an empty label", shortened(text));
  return variant;
}

CompareRecipe::CompareRecipe(const std::string& mixer) : recipe(mixer) {
  settings.bind("compare", compare);
  settings.bind("speed", speed);
  settings.bind("data", recipe.data);
  recipe.model.bind(settings);
  settings.bind("loss", recipe.loss);
  settings.bind("train", recipe.train);
  settings.bind("evaluate", recipe.evaluate);
  settings.bind("probe", probe);
}

std::unique_ptr<CompareRecipe> CompareRecipe::read(const fs::path& path) {
  const std::string text = read_file(path), name = path.string();
  const std::string base = peek_toml(text, name, "compare.base");
  const fs::path base_path = base.empty() ? fs::path() : path.parent_path() / base;
  const std::string base_text = base.empty() ? "" : read_file(base_path);
  std::string mixer = peek_toml(text, name, "model.mixer");
  if (mixer.empty()) mixer = peek_toml(base_text, base_path.string(), "model.mixer");
  auto recipe = mixer.empty() ? std::make_unique<CompareRecipe>() : std::make_unique<CompareRecipe>(mixer);
  recipe->settings.parse_toml(base_text, base_path.string());
  recipe->settings.parse_toml(text, name);
  return recipe;
}

void CompareRecipe::apply(const Variant& variant, Settings& target) const {
  for (const Setting& setting : settings.all()) {
    const std::string key = setting.section + "." + setting.name;
    if (!setting.assigned || key == "model.mixer") continue;
    if (setting.section.starts_with("mixer"))
      set_in_mixers(setting, target);
    else if (target.find(key))
      target.set(key, setting.get(), key);
  }
  const std::string where = fmt::format("compare: variant \"{}\"", shortened(variant.label));
  for (const auto& [key, value] : variant.settings) set_in_variant(key, value, where, target);
}

std::string CompareRecipe::to_toml() const {
  std::string text, section;
  for (const Setting& setting : settings.all()) {
    if (!setting.assigned || (setting.section == "compare" && setting.name == "base")) continue;
    if (setting.section != section)
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section = setting.section);
    text += fmt::format("{} = {}\n", setting.name, to_text(setting.get()));
  }
  return text;
}

}  // namespace prism
