// prism lm evaluate RUN: perplexity of texts, LAMBADA, multiple choice, recall by length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "commands.h"
#include "log_json.h"
#include "prism/core/enum_of.h"
#include "prism/core/error.h"
#include "prism/evaluate/recall.h"
#include "prism/evaluate/text_loss.h"
#include "prism/evaluate/text_tasks.h"
#include "prism/ops/device.h"
#include "prism/train/language_model_run.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

struct EvaluationConfig {
  int64_t context = 0, stride = 0;
  std::vector<std::string> recall = {};
  std::vector<int64_t> recall_lengths = {512, 1024, 2048};
  int64_t recall_examples = 50;
  using Self = EvaluationConfig;
  static constexpr auto fields = std::tuple{
      Field{"context", &Self::context, Range{0, 1e9}, "tokens",
            "that the model sees of --tokens at most; 0: the length that it was trained with"},
      Field{"stride", &Self::stride, Range{0, 1e9}, "tokens", "by which the context moves; 0: half of it"},
      Field{"recall", &Self::recall, Any{}, "",
            "needle: a number among sentences about something else; pairs: the value of one of "
            "many keys"},
      Field{"recall_lengths", &Self::recall_lengths, Range{1, 1e8}, "tokens",
            "of the texts in which to recall"},
      Field{"recall_examples", &Self::recall_examples, Range{1, 1e6}, "",
            "of each length, the facts at depths from its beginning to its end"}};
};

class LmEvaluateCommand final : public Command {
 public:
  LmEvaluateCommand() { settings_.bind("evaluate", config_); }

  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism lm train")->required();
    app.add_option("--tokens", tokens_, "token folders of prism lm prepare, with the run's tokenizer");
    app.add_option("--words", words_, "words of the text of --tokens: perplexity by word");
    app.add_option("--completions", completions_, "files of {\"context\", \"continuation\"}: LAMBADA");
    app.add_option("--choices", choices_,
                   "files of {\"query\", \"choices\", \"gold\"}, \"Answer:\" before a choice: PIQA, ARC");
    app.add_option("--endings", endings_, "the same, a choice ends its query: HellaSwag, OpenBookQA");
    app.add_option("--schemas", schemas_,
                   "files of {\"context_options\", \"continuation\", \"gold\"}: WinoGrande");
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    if (tokens_.empty() && completions_.empty() && choices_.empty() && endings_.empty() && schemas_.empty() &&
        config_.recall.empty())
      usage_error(
          "lm evaluate: nothing to evaluate; --tokens, --completions, --choices, --endings and --schemas "
          "name "
          "files, --recall tasks");
    const std::vector<RecallTask> tasks = recall_tasks();
    LanguageModelRun run = open_language_model(run_, require_device(globals.device));
    const auto recall = recall_examples(tasks, *run.tokenizer, static_cast<uint64_t>(globals.seed));
    ordered_json json{{"run", run_}, {"step", run.state.step}};
    for (const std::string& folder : tokens_) json["text"][folder] = text_loss(run, folder);
    for (const std::string& file : completions_) json["completions"][file] = completions(run, file);
    const auto choose = [&](const char* kind, const std::vector<std::string>& files, ChoiceForm form) {
      for (const std::string& file : files) json[kind][file] = choices(run, file, form);
    };
    choose("choices", choices_, ChoiceForm::kAnswers);
    choose("endings", endings_, ChoiceForm::kEndings);
    choose("schemas", schemas_, ChoiceForm::kSchemas);
    for (const auto& [name, examples] : recall) json["recall"][name] = recalled(run, examples);
    fmt::print("{}", globals.json ? dump(json) : text_of(json));
    return 0;
  }

 private:
  ordered_json text_loss(LanguageModelRun& run, const std::string& folder) const {
    const TokenDataset dataset(folder);
    check(dataset.index().tokenizer == run.tokenizer->fingerprint(),
          "{}: was made with the tokenizer {}, the run has {}", folder, dataset.index().tokenizer,
          run.tokenizer->fingerprint());
    TextLossOptions options{.context = config_.context > 0 ? config_.context : run.recipe->data.length};
    options.stride = config_.stride > 0 ? config_.stride : std::max<int64_t>(options.context / 2, 1);
    const TextLoss loss =
        measure_text(*run.model, dataset, 0, dataset.size(), token_bytes(*run.tokenizer), options);
    ordered_json json{{"context", options.context},
                      {"stride", options.stride},
                      {"tokens", loss.tokens},
                      {"bytes", loss.bytes},
                      {"nats_per_token", loss.nats_per_token()},
                      {"perplexity", loss.perplexity()},
                      {"bits_per_byte", loss.bits_per_byte()}};
    if (words_ > 0) json["word_perplexity"] = std::exp(loss.nats / static_cast<double>(words_));
    return json;
  }

  static ordered_json completions(LanguageModelRun& run, const std::string& file) {
    const CompletionResult result = evaluate_completions(*run.model, *run.tokenizer, read_completions(file));
    return {{"examples", result.examples}, {"accuracy", result.accuracy}, {"perplexity", result.perplexity}};
  }

  static ordered_json choices(LanguageModelRun& run, const std::string& file, ChoiceForm form) {
    const ChoiceResult result = evaluate_choices(*run.model, *run.tokenizer, read_choices(file, form));
    return {{"examples", result.examples},
            {"accuracy", result.accuracy},
            {"normalised_accuracy", result.normalised_accuracy}};
  }

  std::vector<RecallTask> recall_tasks() const {
    std::vector<RecallTask> tasks;
    for (const std::string& name : config_.recall)
      tasks.push_back(enum_of<RecallTask>(name, "lm evaluate", "--recall task"));
    return tasks;
  }

  /// By name, of all tasks and lengths: their mistakes before any work is done.
  std::vector<std::pair<std::string, std::vector<RecallExample>>> recall_examples(
      const std::vector<RecallTask>& tasks, Tokenizer& tokenizer, uint64_t seed) const {
    if (!tasks.empty() && config_.recall_lengths.empty())
      usage_error("lm evaluate: --recall needs --recall-lengths");
    std::vector<std::pair<std::string, std::vector<RecallExample>>> all;
    for (const RecallTask task : tasks)
      for (const int64_t length : config_.recall_lengths)
        all.emplace_back(fmt::format("{} of {}", enum_name(task), length),
                         make_recall(task, tokenizer,
                                     {.length = length, .examples = config_.recall_examples, .seed = seed}));
    return all;
  }

  static ordered_json recalled(LanguageModelRun& run, const std::vector<RecallExample>& examples) {
    const RecallResult result = evaluate_recall(*run.model, *run.tokenizer, examples);
    return {{"examples", result.examples},
            {"accuracy", result.accuracy},
            {"nats_per_token", result.nats_per_token},
            {"accuracy_by_depth", result.by_depth}};
  }

  /// A line a file, or task and length.
  static std::string text_of(const ordered_json& json) {
    std::string text;
    for (const char* kind : {"text", "completions", "choices", "endings", "schemas", "recall"}) {
      if (!json.contains(kind)) continue;
      for (const auto& [name, figures] : json[kind].items()) {
        text += name + ":";
        for (const auto& [key, value] : figures.items())
          text += value.is_number_float() ? fmt::format(" {} {:.4f}", key, value.get<double>())
                                          : fmt::format(" {} {}", key, value.dump());
        text += "\n";
      }
    }
    return text;
  }

  EvaluationConfig config_;
  Settings settings_;
  SettingFlags flags_;
  std::string run_;
  std::vector<std::string> tokens_, completions_, choices_, endings_, schemas_;
  int64_t words_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_lm_evaluate() { return std::make_unique<LmEvaluateCommand>(); }

}  // namespace prism::cli
