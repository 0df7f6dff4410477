#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "prism/core/error.h"
#include "prism/train/run_folder.h"
#include "prism/train/training_session.h"

namespace prism::cli {
namespace {

bool is_recipe(const std::string& word) { return word.ends_with(".toml"); }

class TrainCommand : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>& arguments) override {
    recipe_ = starting_recipe(arguments);
    seed_given_ = !peek_argument(arguments, "--seed").empty();
    app.add_option("SOURCE", source_, "recipe (.toml) or interactions file");
    app.add_option("--resume", request_.resume, "continue this run folder where it stopped");
    app.add_option("--from", request_.from, "start a new run with the weights and items of this one");
    app.add_flag("--dry-run", request_.dry_run, "print the summaries, estimate the time of an epoch, stop");
    flags_.declare(app, recipe_->settings);
  }

  int run(const Globals& globals) override {
    if (!source_.empty() && !is_recipe(source_)) recipe_->settings.set("data.file", source_, "train");
    flags_.apply(recipe_->settings);
    if (seed_given_) recipe_->settings.set("run.seed", globals.seed, "--seed");
    check_request();
    const Placement place = place_process(globals);
    request_.device = place.device, request_.ranks = place.ranks;
    const TrainOutcome outcome = train_recommender(*recipe_, request_);
    if (place.leads() && (outcome.trained || (outcome.dry_run && globals.json)))
      fmt::print("{}\n", globals.json ? outcome.to_json() : outcome.to_text());
    return outcome.signal ? 128 + outcome.signal : 0;
  }

 private:
  /// The recipe that flags are applied to: of a run folder, a file, or the defaults of --mixer.
  static std::unique_ptr<Recipe> starting_recipe(const std::vector<std::string>& arguments) {
    for (const char* flag : {"--resume", "--from"})
      if (const std::string run = peek_argument(arguments, flag); !run.empty())
        return Recipe::read(RunFolder::open(run).config());
    for (size_t i = 0; i < arguments.size(); ++i)
      if (is_recipe(arguments[i]) && (i == 0 || arguments[i - 1] != "--out"))
        return Recipe::read(arguments[i]);
    const std::string mixer = peek_argument(arguments, "--mixer");
    return mixer.empty() ? std::make_unique<Recipe>() : std::make_unique<Recipe>(mixer);
  }

  void check_request() {
    if (const ModelSpec& model = recipe_->model; model.model.mixer != model.mixer.text())
      usage_error("train: --mixer {} does not fit the recipe of a {}; change the recipe, or leave it out",
                  model.model.mixer, model.mixer.text());
    if (!request_.from.empty()) {
      if (!request_.resume.empty()) usage_error("train: --resume and --from exclude each other");
      const auto given = flags_.given();
      if (std::find(given.begin(), given.end(), "train.out") == given.end())
        usage_error("train: --from needs --out, the folder of the new run");
      if (is_recipe(source_))
        usage_error("train: --from takes its recipe from {}, not from {}; flags change it",
                    request_.from.string(), source_);
    }
    if (request_.resume.empty()) return;
    if (!source_.empty())
      usage_error("train: --resume takes its recipe from the run folder, not from {}", source_);
    for (const std::string& key : flags_.given())
      if (!Recipe::may_change_on_resume(key) || key == "train.out")
        usage_error("train: --resume cannot change {}; start a new run for that (--from keeps the weights)",
                    key);
    if (seed_given_) usage_error("train: --resume cannot change the seed");
  }

  std::unique_ptr<Recipe> recipe_;
  SettingFlags flags_;
  TrainRequest request_;
  std::string source_;
  bool seed_given_ = false;
};

}  // namespace

std::unique_ptr<Command> make_train() { return std::make_unique<TrainCommand>(); }

}  // namespace prism::cli
