#include "prism/train/language_model_recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/toml.h"

namespace prism {

LanguageModelRecipe::LanguageModelRecipe(const std::string& mixer) : model(mixer) {
  settings.bind("run", run);
  settings.bind("data", data);
  model.bind(settings);
  settings.bind("train", train);
}

std::unique_ptr<LanguageModelRecipe> LanguageModelRecipe::read(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  if (has_toml_section(text, path.string(), "compare"))
    usage_error("{} is a comparison; prism compare takes it", path.string());
  const std::string mixer = peek_toml(text, path.string(), "model.mixer");
  auto recipe =
      mixer.empty() ? std::make_unique<LanguageModelRecipe>() : std::make_unique<LanguageModelRecipe>(mixer);
  recipe->settings.parse_toml(text, path.string());
  return recipe;
}

std::unique_ptr<LanguageModelRecipe> LanguageModelRecipe::parse_json(const std::string& json,
                                                                     const std::string& name) {
  const nlohmann::json document = nlohmann::json::parse(json, nullptr, false);
  check(document.is_object() && document.contains("model"),
        "{}: its settings are no JSON object with a model", name);
  auto recipe = std::make_unique<LanguageModelRecipe>(document["model"].value("mixer", "prism"));
  recipe->settings.parse_json(json, name);
  return recipe;
}

bool LanguageModelRecipe::may_change_on_resume(const std::string& key) {
  static constexpr std::string_view kKeys[] = {
      "data.tokens", "data.valid_tokens",        "train.patience",         "train.activation_checkpointing",
      "train.share", "train.checkpoint_minutes", "train.checkpoint_steps", "train.out"};
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

RateSchedule LanguageModelRecipe::rate() const {
  return {.learning_rate = train.learning_rate,
          .warmup = train.warmup,
          .schedule = train.schedule,
          .floor = train.final_rate,
          .decay = train.decay_share};
}

}  // namespace prism
