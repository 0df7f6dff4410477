#include "prism/train/training_session.h"

#include <fmt/ranges.h>

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
#include "prism/evaluate/protocol.h"
#include "prism/evaluate/user_vectors.h"
#include "prism/train/run.h"
#include "train/epoch_table.h"
#include "train/run_lock.h"
#include "train/train_loop.h"

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
      .dump(-1, ' ', false, ordered_json::error_handler_t::replace);
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
  return fs::path("runs") / name.substr(0, name.find('.', 1));
}

int64_t parameter_count(const Recommender& model) {
  int64_t total = 0;
  for (const auto& [part, count] : model.parameter_counts()) total += count;
  return total;
}

void tell_model(const Recipe& recipe, const Recommender& model) {
  info("model: {}, {} blocks of width {}, histories up to {} items: {} parameters", recipe.model.model.mixer,
       recipe.model.model.blocks, recipe.model.model.width, recipe.model.model.max_length,
       with_commas(parameter_count(model)));
  for (const auto& [part, count] : model.parameter_counts())
    info("  {:<24} {:>12}", part, with_commas(count));
}

void tell_memory(const Recipe& recipe, const Recommender& model, c10::Device device) {
  const MemoryEstimate estimate = estimate_memory(recipe, parameter_count(model));
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
    if (leads() && !resuming() && !request_.dry_run && !recipe_.data.file.empty())
      RunFolder::require_free(default_folder(recipe_));  // before the log is read
    read_log();
    build_model();
    if (request_.dry_run) return dry_run();
    open_folder();
    Trainer trainer(recipe_, log_, *split_, *folder_, model_, request_.device, request_.ranks);
    if (resuming()) {
      trainer.resume();
      if (leads()) write_file(folder_->config(), recipe_.settings.to_toml());  // what the flags changed
      info("resuming {} at epoch {}, step {}", folder_->root().string(), trainer.state().epoch + 1,
           with_commas(trainer.state().step));
    }
    return train(trainer);
  }

 private:
  bool resuming() const { return !request_.resume.empty(); }
  bool leads() const { return !request_.ranks || request_.ranks->leads(); }

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
    if (request_.ranks) request_.ranks->require_same("the log", log_fingerprint(log_));
    for (const std::string& line : report_.text()) info("{}", line);
    info("{}", split_->summary());
    if (const std::string chosen = recipe_.fit_to(log_); !chosen.empty()) info("{}", chosen);
    if (request_.ranks) request_.ranks->require_same("the recipe", recipe_.settings.to_json());
    check_task();
  }

  /// What would only fail after an epoch, or after the folder was made.
  void check_task() const {
    require_shareable(recipe_.train.batch_size, request_.ranks.get());
    check(log_.items.size() >= 2, "{}: has one item, so there is nothing to rank", report_.file);
    check(!split_->cases(Part::kValid).empty(),
          "{}: no user has three interactions, so nothing is left to validate on", report_.file);
    std::vector<std::string> names;
    for (const Metric& metric : RankMetrics(recipe_.evaluate.ks).means()) names.push_back(metric.name);
    if (std::find(names.begin(), names.end(), recipe_.train.metric) == names.end())
      usage_error("train: no validation metric is called \"{}\"{}; --ks gives {}", recipe_.train.metric,
                  did_you_mean(recipe_.train.metric, names), fmt::join(names, ", "));
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
    if (!leads()) {
      folder_.emplace(resuming() ? request_.resume : default_folder(recipe_));
    } else if (resuming()) {
      folder_ = RunFolder::open(request_.resume);
      lock_ = std::make_unique<RunLock>(folder_->root());
      remove_abandoned_files(folder_->root());
      require_writable_folder(folder_->last().parent_path(), bytes_needed());
    } else {
      folder_ = RunFolder::create(default_folder(recipe_), bytes_needed());
      lock_ = std::make_unique<RunLock>(folder_->root());
      write_dataset(*folder_, log_, titles_of(recipe_, log_), dataset_summary(log_, *split_, report_));
      write_file(folder_->config(), recipe_.settings.to_toml());
    }
  }

  /// Two checkpoints with moments (the old one lives until the new one is whole), the best one, and logs.
  int64_t bytes_needed() const {
    return parameter_count(*model_) * 4 * (3 + 3 + 1 + 1) + (int64_t{16} << 20);
  }

  TrainOutcome dry_run() {
    folder_.emplace("");
    Trainer trainer(recipe_, log_, *split_, *folder_, model_, request_.device, request_.ranks);
    const DryRun estimate{.steps_per_epoch = trainer.steps_per_epoch(),
                          .epochs = recipe_.train.epochs,
                          .epochs_done = resuming() ? read_epochs_done() : 0,
                          .epoch_seconds = trainer.measure_epoch(kDryRunSteps),
                          .peak_bytes = peak_memory(),
                          .parameters = parameter_count(*model_)};
    const int64_t ahead = std::max<int64_t>(estimate.epochs - estimate.epochs_done, 0);
    info("an epoch of {} steps takes about {}, {} {} at most {}; the program took {} at its peak",
         with_commas(estimate.steps_per_epoch), format_duration(estimate.epoch_seconds),
         resuming() ? "the remaining" : "all", counted(ahead, "epoch", "epochs"),
         format_duration(estimate.epoch_seconds * static_cast<double>(ahead)),
         format_bytes(estimate.peak_bytes));
    if (resuming())
      info("dry run: nothing was written; {} would go on after epoch {}", request_.resume.string(),
           estimate.epochs_done);
    else
      info("dry run: nothing was written; a run would go to {}", default_folder(recipe_).string());
    return {.dry_run = true, .estimate = estimate};
  }

  int64_t read_epochs_done() const {
    const fs::path last = RunFolder::open(request_.resume).last();
    return fs::exists(last) ? read_checkpoint(last).state.epoch : 0;
  }

  TrainOutcome train(Trainer& trainer) {
    if (!leads()) return {.signal = trainer.run({}), .state = trainer.state()};
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
      figures.emplace_back("model",
                           measure(*model_, log_, *split_, part, recipe_.evaluate).with_intervals(seed));
      figures.emplace_back("popularity", baselines_->of(part).popularity.with_intervals(seed));
      figures.emplace_back("markov", baselines_->of(part).markov.with_intervals(seed));
    }
    outcome.trained = true;
    const Protocol protocol{recipe_.data, *split_, log_.items.size(), recipe_.evaluate.filter_seen};
    outcome.mixer = recipe_.model.model.mixer;
    outcome.protocol = protocol.text(), outcome.protocol_json = protocol.to_json();
    if (outcome.state.step < recipe_.train.warmup)
      warn("training ended within its warm-up of {} steps; give it more --epochs or a shorter --warmup",
           with_commas(recipe_.train.warmup));
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
  std::unique_ptr<RunLock> lock_;
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

/// "*** the model loses to markov: NDCG@10 0.0512 against 0.0766 ***", or "".
std::string lost_against(const FiguresByName& figures, const std::string& metric) {
  std::string text;
  const double own = figure(figures.front().second, metric);
  for (const auto& [name, metrics] : figures)
    if (const double other = figure(metrics, metric); other > own)
      text +=
          fmt::format("*** the model loses to {}: {} {:.4f} against {:.4f} ***\n", name, metric, own, other);
  return text;
}

ordered_json estimate_json(const DryRun& estimate) {
  return {{"dry_run", true},
          {"parameters", estimate.parameters},
          {"steps_per_epoch", estimate.steps_per_epoch},
          {"epoch_seconds", estimate.epoch_seconds},
          {"epochs", estimate.epochs},
          {"epochs_done", estimate.epochs_done},
          {"peak_bytes", estimate.peak_bytes}};
}

}  // namespace

std::string TrainOutcome::to_json() const {
  if (dry_run) return estimate_json(estimate).dump(2);
  return ordered_json{{"protocol", ordered_json::parse(protocol_json)},
                      {"run", folder.string()},
                      {"mixer", mixer},
                      {"seed", state.seed},
                      {"epochs", state.epoch},
                      {"best_epoch", state.best_epoch},
                      {"seconds", state.seconds},
                      {"test", figures_json(test)},
                      {"valid", figures_json(valid)},
                      {"intervals", {{"test", intervals_json(test)}, {"valid", intervals_json(valid)}}}}
      .dump(2);
}

std::string TrainOutcome::to_text() const {
  constexpr const char* kColumns[] = {"HR@10", "NDCG@10", "HR@200", "MRR", "AUC"};
  std::string text = fmt::format("test of epoch {} ({})\n{:<16}", state.best_epoch, protocol, "");
  for (const char* column : kColumns) text += fmt::format(" {:>9}", column);
  for (const auto& [name, metrics] : test) {
    text += fmt::format("\n{:<16}", name == "model" ? mixer : name);
    for (const char* column : kColumns) text += fmt::format(" {:>9}", figure_text(figure(metrics, column)));
  }
  text += "\n" + lost_against(test, "NDCG@10");
  for (const Metric& metric : test.front().second)
    if (metric.name == "NDCG@10" || metric.name == "HR@10")
      text += fmt::format("{} of {}: {:.4f}, 95 % interval over users {:.4f} to {:.4f}\n", metric.name, mixer,
                          metric.value, metric.low, metric.high);
  return text + fmt::format("run folder {}: prism recommend, evaluate, export, info and report take it\n",
                            folder.string());
}

TrainOutcome train_recommender(Recipe& recipe, const TrainRequest& request) {
  return Session(recipe, request).run();
}

}  // namespace prism
