// prism lm train: a language model from a recipe or flags into a run folder.
#include <fmt/format.h>

#include "commands.h"
#include "prism/core/error.h"
#include "prism/train/language_model_run.h"

namespace prism::cli {
namespace {

class LmTrainCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>& arguments) override {
    recipe_ = starting_recipe(arguments);
    seed_given_ = !peek_argument(arguments, "--seed").empty();
    app.add_option("RECIPE", source_, "recipe (.toml); without it, flags alone");
    app.add_option("--resume", request_.resume, "continue this run folder where it stopped");
    flags_.declare(app, recipe_->settings);
  }

  int run(const Globals& globals) override {
    flags_.apply(recipe_->settings);
    if (seed_given_) recipe_->settings.set("run.seed", globals.seed, "--seed");
    check_request();
    const Placement place = place_process(globals);
    request_.device = place.device, request_.ranks = place.ranks;
    const LanguageModelOutcome outcome = train_language_model(*recipe_, request_);
    if (outcome.signal) return 128 + outcome.signal;
    if (place.leads()) fmt::print("{}", globals.json ? outcome.to_json() + "\n" : outcome.to_text());
    return 0;
  }

 private:
  static std::unique_ptr<LanguageModelRecipe> starting_recipe(const std::vector<std::string>& arguments) {
    if (const std::string run = peek_argument(arguments, "--resume"); !run.empty())
      return LanguageModelRecipe::read(RunFolder::open(run).config());
    for (const std::string& word : arguments)
      if (word.ends_with(".toml")) return LanguageModelRecipe::read(word);
    const std::string mixer = peek_argument(arguments, "--mixer");
    return mixer.empty() ? std::make_unique<LanguageModelRecipe>()
                         : std::make_unique<LanguageModelRecipe>(mixer);
  }

  void check_request() const {
    if (!source_.empty() && !source_.ends_with(".toml"))
      usage_error("lm train: {} is no recipe (.toml); --tokens names the token folder", source_);
    if (const LanguageModelSpec& model = recipe_->model; model.model.mixer != model.mixer.text())
      usage_error("lm train: --mixer {} does not fit the recipe of a {}; change the recipe, or leave it out",
                  model.model.mixer, model.mixer.text());
    if (request_.resume.empty()) return;
    if (!source_.empty())
      usage_error("lm train: --resume takes its recipe from the run folder, not from {}", source_);
    for (const std::string& key : flags_.given())
      if (!LanguageModelRecipe::may_change_on_resume(key) || key == "train.out")
        usage_error("lm train: --resume cannot change {}; start a new run for that", key);
    if (seed_given_) usage_error("lm train: --resume cannot change the seed");
  }

  std::unique_ptr<LanguageModelRecipe> recipe_;
  SettingFlags flags_;
  LanguageModelRequest request_;
  std::string source_;
  bool seed_given_ = false;
};

}  // namespace

std::unique_ptr<Command> make_lm_train() { return std::make_unique<LmTrainCommand>(); }

}  // namespace prism::cli
