#include "prism/compare/compare_recipe.h"

#include <fmt/format.h>

#include <algorithm>
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

struct RecipeFile {
  fs::path path;
  std::string text;
};

/// The recipe after the one that it names as its base, after that one's base, and so on. Usage error where
/// they lead back to a file that was there before.
std::vector<RecipeFile> with_bases(const fs::path& path) {
  std::vector<RecipeFile> files;
  std::string chain;
  for (fs::path next = path; !next.empty();) {
    const std::string name = next.string();
    chain += (chain.empty() ? "" : " -> ") + name;
    for (const RecipeFile& file : files)
      if (std::error_code error; fs::equivalent(file.path, next, error))
        usage_error("compare: the bases of {} lead back to a recipe before them: {}", path.string(), chain);
    files.push_back({next, read_file(next)});
    const std::string base = peek_toml(files.back().text, name, "compare.base");
    next = base.empty() ? fs::path() : next.parent_path() / base;
  }
  std::reverse(files.begin(), files.end());
  return files;
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
  const std::vector<RecipeFile> files = with_bases(path);
  std::string mixer;
  for (const RecipeFile& file : files)
    if (const std::string own = peek_toml(file.text, file.path.string(), "model.mixer"); !own.empty())
      mixer = own;
  auto recipe = mixer.empty() ? std::make_unique<CompareRecipe>() : std::make_unique<CompareRecipe>(mixer);
  for (const RecipeFile& file : files) recipe->settings.parse_toml(file.text, file.path.string());
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
