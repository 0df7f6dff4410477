#include "prism/train/training_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/text.h"
#include "prism/data/item_features.h"
#include "prism/data/reader.h"
#include "prism/data/summary.h"
#include "prism/data/titles.h"
#include "prism/evaluate/baselines.h"
#include "prism/evaluate/evaluate_model.h"
#include "prism/evaluate/user_vectors.h"
#include "prism/train/run.h"
#include "train/epoch_table.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kDryRunSteps = 5;
constexpr int64_t kGpuTokens = 65536;  // of one forward pass of an evaluation: few launches, little memory

/// The model's metrics on one part; intervals where `seed` draws their resamples.
RankMetrics measure(Recommender& model, const Interactions& log, const Split& split, Part part,
                    const EvaluateConfig& config) {
  EvaluateOptions options{.filter_seen = config.filter_seen};
  if (!model_device(model).is_cpu()) options.batch_tokens = kGpuTokens;
  const auto counts = rank_cases(model, log, split, part, options);
  RankMetrics metrics(config.ks);
  const std::vector<Case>& cases = split.cases(part);
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto history = split.history(cases[i]);
    metrics.add(counts[i], std::find(history.begin(), history.end(), cases[i].target) != history.end());
  }
  return metrics;
}

MetricMap to_map(const std::vector<Metric>& figures) {
  MetricMap map;
  for (const Metric& metric : figures) map[metric.name] = metric.value;
  return map;
}

std::string dataset_summary(const Interactions& log, const Split& split, const ReadReport& report) {
  const LogCounts counts = count_log(log);
  return ordered_json{{"file", report.file},
                      {"counts",
                       {{"users", counts.users},
                        {"items", counts.items},
                        {"interactions", counts.interactions},
                        {"length_min", counts.length_min},
                        {"length_median", counts.length_median},
                        {"length_max", counts.length_max}}},
                      {"timestamps", counts.timed},
                      {"split", split.summary()},
                      {"read", report.text()}}
      .dump();
}

/// [items], or empty where the log has no titles.
std::vector<std::string> titles_of(const Recipe& recipe, const Interactions& log) {
  const Titles titles = read_titles(recipe.data, log.items);
  std::vector<std::string> all;
  for (int64_t item = 0; !titles.empty() && item < log.items.size(); ++item)
    all.emplace_back(titles.of(item));
  return all;
}

fs::path default_folder(const Recipe& recipe) {
  if (!recipe.train.out.empty()) return recipe.train.out;
  std::string name = fs::path(recipe.data.file).filename().string();
  return fs::path("runs") / name.substr(0, name.find('.'));
}

void tell_model(const Recipe& recipe, const Recommender& model) {
  int64_t total = 0;
  for (const auto& [part, count] : model.parameter_counts()) total += count;
  info("model: {}, {} blocks of width {}, histories up to {} items: {} parameters", recipe.model.model.mixer,
       recipe.model.model.blocks, recipe.model.model.width, recipe.model.model.max_length,
       with_commas(total));
  for (const auto& [part, count] : model.parameter_counts())
    info("  {:<24} {:>12}", part, with_commas(count));
}

void tell_memory(const Recipe& recipe, const Recommender& model, c10::Device device) {
  int64_t parameters = 0;
  for (const auto& [part, count] : model.parameter_counts()) parameters += count;
  const MemoryEstimate estimate = estimate_memory(recipe, parameters);
  const int64_t available = device.is_cpu() ? free_memory() : 0;
  info("memory: about {} for weights and optimiser, up to {} for a step of {} windows{}",
       format_bytes(estimate.weights), format_bytes(estimate.activations), recipe.train.batch_size,
       available > 0 ? fmt::format("; {} are free", format_bytes(available)) : "");
  if (available > 0 && estimate.total() > available)
    warn("a training step may not fit into memory; lower --batch-size (now {}) or --max-length (now {})",
         recipe.train.batch_size, recipe.model.model.max_length);
}

/// The parts of a run that live as long as it does.
class Session {
 public:
  Session(Recipe& recipe, const TrainRequest& request) : recipe_(recipe), request_(request) {}

  TrainOutcome run() {
    read_log();
    build_model();
    if (request_.dry_run) return dry_run();
    open_folder();
    Trainer trainer(recipe_, log_, *split_, *folder_, model_, request_.device);
    if (resuming()) {
      trainer.resume();
      info("resuming {} at epoch {}, step {}", folder_->root().string(), trainer.state().epoch + 1,
           with_commas(trainer.state().step));
    }
    return train(trainer);
  }

 private:
  bool resuming() const { return !request_.resume.empty(); }

  void read_log() {
    if (recipe_.data.file.empty())
      usage_error("train: no data; name a recipe, a file, or --file (prism train --help)");
    log_ = read_interactions(recipe_.data, report_);
    if (resuming()) check_same_log(RunFolder::open(request_.resume), log_);
    if (!request_.from.empty()) {
      origin_ = open_run(request_.from, request_.device);
      const int64_t fresh = adopt_items(origin_->items, log_);
      info("continuing from {}: {} new items join its {}", request_.from.string(), with_commas(fresh),
           with_commas(origin_->items.size()));
    }
    split_ = std::make_unique<Split>(log_, recipe_.data);
    for (const std::string& line : report_.text()) info("{}", line);
    info("{}", split_->summary());
    if (const std::string chosen = recipe_.fit_to(log_); !chosen.empty()) info("{}", chosen);
  }

  void build_model() {
    model_ = std::make_shared<Recommender>(recipe_.model, log_.items.size(),
                                           static_cast<uint64_t>(recipe_.run.seed));
    const at::Tensor features = read_item_features(recipe_.data, log_.items);
    if (features.defined()) model_->set_item_features(features);
    if (origin_) adopt_weights(*origin_->model, *model_);
    tell_model(recipe_, *model_);
    tell_memory(recipe_, *model_, request_.device);
    model_->to(request_.device);
  }

  void open_folder() {
    if (resuming()) {
      folder_ = RunFolder::open(request_.resume);
      require_writable_folder(folder_->last().parent_path(), bytes_needed());
    } else {
      folder_ = RunFolder::create(default_folder(recipe_), bytes_needed());
      write_dataset(*folder_, log_, titles_of(recipe_, log_), dataset_summary(log_, *split_, report_));
    }
    write_file(folder_->config(), recipe_.settings.to_toml());
  }

  /// Two checkpoints with moments (the old one lives until the new one is whole), the best one, and logs.
  int64_t bytes_needed() const {
    int64_t parameters = 0;
    for (const auto& [part, count] : model_->parameter_counts()) parameters += count;
    return parameters * 4 * (3 + 3 + 1 + 1) + (int64_t{16} << 20);
  }

  TrainOutcome dry_run() {
    folder_.emplace("");
    Trainer trainer(recipe_, log_, *split_, *folder_, model_, request_.device);
    const double seconds = trainer.measure_epoch(kDryRunSteps);
    info("an epoch of {} steps takes about {}, {} epochs at most {}; the program took {} at its peak",
         with_commas(trainer.steps_per_epoch()), format_duration(seconds), recipe_.train.epochs,
         format_duration(seconds * static_cast<double>(recipe_.train.epochs)), format_bytes(peak_memory()));
    info("dry run: nothing was written; a run would go to {}", default_folder(recipe_).string());
    return {};
  }

  TrainOutcome train(Trainer& trainer) {
    baselines_ = evaluate_baselines(log_, *split_, recipe_.evaluate.ks, recipe_.evaluate.filter_seen);
    const std::string& metric = recipe_.train.metric;
    info("{}", epoch_table_head(metric));
    info("{}", epoch_table_row("popularity", to_map(baselines_->valid.popularity.means()), metric));
    info("{}", epoch_table_row("Markov", to_map(baselines_->valid.markov.means()), metric));
    const int signal = trainer.run([this](Recommender& model) { return validate(model); });
    TrainOutcome outcome{.signal = signal, .folder = folder_->root(), .state = trainer.state()};
    if (signal) {
      info("stopped by {} at step {}; the run is saved, go on with: prism train --resume {}",
           signal == SIGINT ? "SIGINT" : "SIGTERM", with_commas(trainer.state().step),
           folder_->root().string());
      return outcome;
    }
    trainer.load_best();
    return finish(std::move(outcome));
  }

  MetricMap validate(Recommender& model) {
    return to_map(measure(model, log_, *split_, Part::kValid, recipe_.evaluate).means());
  }

  TrainOutcome finish(TrainOutcome outcome) {
    const auto seed = static_cast<uint64_t>(recipe_.run.seed);
    for (const Part part : {Part::kTest, Part::kValid}) {
      FiguresByName& figures = part == Part::kTest ? outcome.test : outcome.valid;
      figures.emplace_back(recipe_.model.model.mixer,
                           measure(*model_, log_, *split_, part, recipe_.evaluate).with_intervals(seed));
      figures.emplace_back("popularity", baselines_->of(part).popularity.with_intervals(seed));
      figures.emplace_back("markov", baselines_->of(part).markov.with_intervals(seed));
    }
    outcome.trained = true;
    outcome.protocol =
        fmt::format("{}; full ranking over {} items, items of the history {}", split_->summary(),
                    with_commas(log_.items.size()), recipe_.evaluate.filter_seen ? "left out" : "kept");
    write_file(folder_->results(), outcome.to_json() + "\n");
    return outcome;
  }

  Recipe& recipe_;
  const TrainRequest& request_;
  Interactions log_;
  ReadReport report_;
  std::unique_ptr<Split> split_;
  std::optional<Run> origin_;
  std::shared_ptr<Recommender> model_;
  std::optional<RunFolder> folder_;
  std::optional<BaselineResult> baselines_;
};

ordered_json figures_json(const FiguresByName& figures) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, metrics] : figures)
    for (const Metric& metric : metrics) json[name][metric.name] = metric.value;
  return json;
}

ordered_json intervals_json(const FiguresByName& figures) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, metrics] : figures)
    for (const Metric& metric : metrics)
      if (!std::isnan(metric.low)) json[name][metric.name] = {metric.low, metric.high};
  return json;
}

double figure(const std::vector<Metric>& figures, const std::string& name) {
  for (const Metric& metric : figures)
    if (metric.name == name) return metric.value;
  return std::nan("");
}

/// "LOSES to markov: NDCG@10 0.0512 against 0.0766", or "".
std::string lost_against(const FiguresByName& figures, const std::string& metric) {
  std::string text;
  const double own = figure(figures.front().second, metric);
  for (const auto& [name, metrics] : figures)
    if (const double other = figure(metrics, metric); other > own)
      text += fmt::format("*** {} LOSES to {}: {} {:.4f} against {:.4f} ***\n", figures.front().first, name,
                          metric, own, other);
  return text;
}

}  // namespace

std::string TrainOutcome::to_json() const {
  return ordered_json{{"protocol", protocol},
                      {"run", folder.string()},
                      {"seed", state.seed},
                      {"epochs", state.epoch},
                      {"best_epoch", state.best_epoch},
                      {"seconds", state.seconds},
                      {"test", figures_json(test)},
                      {"valid", figures_json(valid)},
                      {"test_intervals", intervals_json(test)},
                      {"valid_intervals", intervals_json(valid)}}
      .dump(2);
}

std::string TrainOutcome::to_text() const {
  constexpr const char* kColumns[] = {"HR@10", "NDCG@10", "HR@200", "MRR", "AUC"};
  std::string text = fmt::format("test of epoch {} ({})\n{:<16}", state.best_epoch, protocol, "");
  for (const char* column : kColumns) text += fmt::format(" {:>9}", column);
  for (const auto& [name, metrics] : test) {
    text += fmt::format("\n{:<16}", name);
    for (const char* column : kColumns) text += fmt::format(" {:>9}", figure_text(figure(metrics, column)));
  }
  text += "\n" + lost_against(test, "NDCG@10");
  for (const Metric& metric : test.front().second)
    if (metric.name == "NDCG@10" || metric.name == "HR@10")
      text += fmt::format("{} of {}: {:.4f}, 95 % interval over users {:.4f} to {:.4f}\n", metric.name,
                          test.front().first, metric.value, metric.low, metric.high);
  return text + fmt::format("run folder {}: prism recommend, evaluate, export, info and report take it\n",
                            folder.string());
}

TrainOutcome train_recommender(Recipe& recipe, const TrainRequest& request) {
  return Session(recipe, request).run();
}

}  // namespace prism
