#include "prism/train/language_model_run.h"

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "train/language_model_task.h"
#include "train/run_lock.h"
#include "train/train_loop.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

fs::path default_folder(const LanguageModelRecipe& recipe) {
  if (!recipe.train.out.empty()) return recipe.train.out;
  return fs::path("runs") / fs::path(recipe.data.tokens).lexically_normal().filename();
}

TrainLoopOptions loop_options(const LanguageModelRecipe& recipe, std::shared_ptr<Ranks> ranks) {
  const LanguageModelTrainConfig& config = recipe.train;
  return {.seed = recipe.run.seed,
          .batch_size = config.batch_size,
          .update = {.optimiser = {.beta2 = config.beta2, .weight_decay = config.weight_decay},
                     .clip_norm = config.clip_norm,
                     .micro_batches = config.micro_batches,
                     .precision = config.precision,
                     .share = config.share,
                     .rate = [rate = recipe.rate(), total = config.updates](
                                 int64_t step) { return scheduled_rate(rate, step, total); }},
          .metric = LanguageModelTask::kMetric,
          .lower_is_better = true,
          .patience = config.patience,
          .checkpoint_minutes = config.checkpoint_minutes,
          .checkpoint_steps = config.checkpoint_steps,
          .settings = recipe.settings.to_json(),
          .ranks = std::move(ranks)};
}

/// The parts of a training that live as long as it does.
class Training {
 public:
  Training(LanguageModelRecipe& recipe, const LanguageModelRequest& request)
      : recipe_(recipe), request_(request) {}

  LanguageModelOutcome run() {
    if (!resuming() && leads()) RunFolder::require_free(default_folder(recipe_));
    if (!dividing_ranks()) require_shareable(recipe_.train.batch_size, request_.ranks.get());
    recipe_.model.fit_to_size(recipe_.settings);
    open_tokens();
    if (request_.ranks) {
      request_.ranks->require_same("the recipe", recipe_.settings.to_json());
      request_.ranks->require_same("the token folder", fingerprints());
    }
    model_ = std::make_shared<LanguageModel>(recipe_.model, train_->index().vocabulary,
                                             static_cast<uint64_t>(recipe_.run.seed));
    model_->to(request_.device);
    require_divisible();
    LanguageModelTask task(recipe_, split(), *tokenizer_, model_, request_.device, dividing_ranks());
    tell(task);
    if (resuming())
      reopen_folder();
    else if (leads())
      create_folder();
    TrainLoop loop(task, loop_options(recipe_, request_.ranks), request_.device,
                   folder_ ? &*folder_ : nullptr);
    if (resuming()) loop.resume();
    if (leads()) write_file(folder_->config(), recipe_.settings.to_toml());
    return train(task, loop);
  }

 private:
  bool resuming() const { return !request_.resume.empty(); }
  bool leads() const { return !request_.ranks || request_.ranks->leads(); }

  /// The ranks, where they divide the tokens of sequences.
  Ranks* dividing_ranks() const {
    return recipe_.train.share == Share::kTokens ? request_.ranks.get() : nullptr;
  }

  void require_divisible() const {
    const Ranks* ranks = dividing_ranks();
    if (!ranks) return;
    if (!model_->takes_parts())
      usage_error(
          "lm train: --share tokens needs mixers whose sequences can be cut (--help lists them) and "
          "--dropout "
          "0; here are {} and {}",
          recipe_.model.model.mixer, recipe_.model.model.dropout);
    if (recipe_.data.length / ranks->size() < model_->shortest_part())
      usage_error(
          "lm train: {} processes would have {} tokens of a sequence of {}, the convolutions need {} each; "
          "raise --length, or start fewer",
          ranks->size(), recipe_.data.length / ranks->size(), recipe_.data.length, model_->shortest_part());
  }

  void open_tokens() {
    if (recipe_.data.tokens.empty())
      usage_error("lm train: no tokens; --tokens names a folder that prism lm prepare made");
    train_.emplace(recipe_.data.tokens);
    if (!recipe_.data.valid_tokens.empty()) valid_.emplace(recipe_.data.valid_tokens);
    tokenizer_ = load_tokenizer_in(train_->folder(), train_->index().tokenizer);
    check(!valid_ || valid_->index().tokenizer == train_->index().tokenizer,
          "lm train: {} was made with the tokenizer {}, {} with {}", recipe_.data.tokens,
          train_->index().tokenizer, recipe_.data.valid_tokens, valid_ ? valid_->index().tokenizer : "");
  }

  TokenSplit split() const {
    if (valid_) return {.train = &*train_, .valid = &*valid_, .train_end = train_->size(), .valid_begin = 0};
    const auto kept =
        static_cast<int64_t>(static_cast<double>(train_->size()) * (1 - recipe_.data.valid_share));
    check(train_->size() - kept >= 2,
          "lm train: valid_share {} leaves {} tokens to validate on; raise it or name --valid-tokens",
          recipe_.data.valid_share, train_->size() - kept);
    return {.train = &*train_, .valid = &*train_, .train_end = kept, .valid_begin = kept};
  }

  void tell(const LanguageModelTask& task) const {
    info("model: {}, {} blocks of width {}: {} parameters", recipe_.model.model.mixer,
         recipe_.model.model.blocks, recipe_.model.model.width, with_commas(parameter_count(*model_)));
    for (const auto& [part, count] : model_->parameter_counts())
      info("  {:<24} {:>13}", part, with_commas(count));
    const int64_t wanted = recipe_.train.updates * recipe_.train.batch_size;
    info("data: {}, {} tokens of {}; {} sequences of {}, {:.2f} passes in {} steps", recipe_.data.tokens,
         with_commas(train_->size()), train_->index().tokenizer, with_commas(task.sequences()),
         recipe_.data.length, static_cast<double>(wanted) / static_cast<double>(task.sequences()),
         with_commas(recipe_.train.updates));
  }

  std::string fingerprints() const {
    return train_->fingerprint() + (valid_ ? " " + valid_->fingerprint() : "");
  }

  void reopen_folder() {
    folder_ = RunFolder::open(request_.resume);
    const auto dataset = nlohmann::json::parse(read_file(folder_->dataset()), nullptr, false);
    check(dataset.is_object() && dataset.value("fingerprint", "") == fingerprints(),
          "lm train: the tokens are not those that {} was started with", request_.resume.string());
    if (!leads()) return;
    lock_ = std::make_unique<RunLock>(folder_->root());
    remove_abandoned_files(folder_->root());
  }

  void create_folder() {
    // Two last checkpoints with moments (the old one lives until the new one is whole), and two best ones.
    folder_ = RunFolder::create(default_folder(recipe_), parameter_count(*model_) * 4 * (3 + 3 + 1 + 1));
    lock_ = std::make_unique<RunLock>(folder_->root());
    save_tokenizer(*tokenizer_, folder_->root());
    const ordered_json dataset{{"tokens", recipe_.data.tokens},
                               {"valid_tokens", recipe_.data.valid_tokens},
                               {"tokenizer", tokenizer_->fingerprint()},
                               {"fingerprint", fingerprints()}};
    write_file(folder_->dataset(), dataset.dump(2) + "\n");
  }

  LanguageModelOutcome train(LanguageModelTask& task, TrainLoop& loop) {
    const int signal = loop.run();
    if (!leads()) return {.signal = signal, .state = loop.state()};
    LanguageModelOutcome outcome{.signal = signal, .folder = folder_->root(), .state = loop.state()};
    outcome.parameters = parameter_count(*model_);
    outcome.tokens = loop.state().step * recipe_.train.batch_size * recipe_.data.length;
    if (signal) {
      info("stopped by {} at step {}; the run is saved, go on with: prism lm train --resume {}",
           signal == SIGINT ? "SIGINT" : "SIGTERM", with_commas(loop.state().step), folder_->root().string());
      return outcome;
    }
    loop.load_best();
    outcome.valid = task.validate();
    write_file(folder_->results(), outcome.to_json() + "\n");
    return outcome;
  }

  LanguageModelRecipe& recipe_;
  const LanguageModelRequest& request_;
  std::optional<TokenDataset> train_, valid_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<LanguageModel> model_;
  std::optional<RunFolder> folder_;
  std::unique_ptr<RunLock> lock_;
};

}  // namespace

std::string LanguageModelOutcome::to_json() const {
  return ordered_json{{"run", folder.string()},   {"seed", state.seed}, {"steps", state.step},
                      {"parameters", parameters}, {"tokens", tokens},   {"best_validation", state.best_epoch},
                      {"seconds", state.seconds}, {"valid", valid}}
      .dump(2);
}

std::string LanguageModelOutcome::to_text() const {
  return fmt::format(
      "validation of the best weights: {:.4f} bits a byte, perplexity {:.3f} a token ({} parameters, {} "
      "tokens "
      "trained)\nrun folder {}: prism lm evaluate and prism lm generate take it\n",
      valid.at("bits_per_byte"), valid.at("perplexity"), with_commas(parameters), with_commas(tokens),
      folder.string());
}

LanguageModelOutcome train_language_model(LanguageModelRecipe& recipe, const LanguageModelRequest& request) {
  return Training(recipe, request).run();
}

LanguageModelRun open_language_model(const fs::path& root, c10::Device device) {
  LanguageModelRun run{.folder = RunFolder::open(root)};
  const bool validated = fs::exists(run.folder.best());
  const fs::path file = validated ? run.folder.best() : run.folder.last();
  if (!validated && !fs::exists(file))
    fail("{} has no checkpoint yet; train it with: prism lm train --resume {}", root.string(), root.string());
  if (!validated) warn("{} has not been validated yet; using its last checkpoint", root.string());
  const Checkpoint checkpoint = read_checkpoint(file);
  run.recipe = LanguageModelRecipe::parse_json(checkpoint.settings, file.string());
  run.tokenizer = load_tokenizer_in(root, checkpoint.items);
  run.state = checkpoint.state;
  run.model = std::make_shared<LanguageModel>(run.recipe->model, run.tokenizer->vocabulary_size(),
                                              static_cast<uint64_t>(run.recipe->run.seed));
  restore_tensors(checkpoint, "model.", model_tensors(*run.model), file.string());
  run.model->to(device);
  run.model->eval();
  return run;
}

}  // namespace prism
