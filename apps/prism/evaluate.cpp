// prism evaluate RUN: full-ranking figures of the model beside popularity and Markov.
#include <cmath>

#include "commands.h"
#include "log_json.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "prism/evaluate/baselines.h"
#include "prism/evaluate/evaluate_model.h"
#include "prism/ops/device.h"
#include "prism/serve/run_log.h"
#include "table.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

/// The figures of one model or baseline.
struct Row {
  std::string name;
  std::vector<Metric> metrics;
};

double value_of(const Row& row, const std::string& name) {
  for (const Metric& metric : row.metrics)
    if (metric.name == name) return metric.value;
  return std::nan("");
}

std::string interval(const Metric& metric) {
  return metric.name == "mean_rank" ? fmt::format("{:.1f} .. {:.1f}", metric.low, metric.high)
                                    : fmt::format("{:.4f} .. {:.4f}", metric.low, metric.high);
}

/// A column a model, with the interval of the first one.
void print_part(const std::string& title, const std::vector<Row>& rows) {
  std::vector<std::string> columns = {title};
  for (const Row& row : rows) {
    columns.push_back(row.name);
    if (columns.size() == 2) columns.emplace_back("95 % interval");
  }
  Table table(columns, 4);
  for (size_t m = 0; m < rows[0].metrics.size(); ++m) {
    std::vector<Cell> cells = {rows[0].metrics[m].name, rows[0].metrics[m].value,
                               interval(rows[0].metrics[m])};
    for (size_t r = 1; r < rows.size(); ++r) cells.emplace_back(rows[r].metrics[m].value);
    table.add(std::move(cells));
  }
  fmt::print("\n{}", table.to_string(TableFormat::kText));
}

/// Calls out a model that loses to a baseline.
void compare(const std::vector<Row>& rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    for (const char* name : {"HR@10", "NDCG@10"})
      if (value_of(rows[0], name) < value_of(rows[i], name))
        warn("the model loses to {}: {} {:.4f} against {:.4f}", rows[i].name, name, value_of(rows[0], name),
             value_of(rows[i], name));
}

class Evaluate final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train")->required();
    app.add_option("--data", data_, "another log, or the new place of the run's own");
    app.add_option("--ks", ks_, "cut-offs of HR and NDCG (default: the run's)")
        ->delimiter(',')
        ->check(CLI::Range(1, 1000000000));
    filter_ = app.add_flag("--filter-seen,!--no-filter-seen", filter_seen_,
                           "items of the history are no candidates (default: the run's choice)");
    app.add_option(
           "--sampled", options_.sampled,
           "rank each target among so many unseen items drawn by --seed, instead of all (not comparable)")
        ->check(CLI::Range(0, 1000000000));
    app.add_option("--batch-tokens", options_.batch_tokens, "items of one forward pass")
        ->check(CLI::Range(1, 1000000000))
        ->capture_default_str();
  }

  int run(const Globals& globals) override {
    const Run run = open_run(run_, require_device(globals.device));
    const RunLog data = read_run_log(run, data_);
    const Split split(data.log, run.recipe->data);
    if (ks_.empty()) ks_ = run.recipe->evaluate.ks;
    options_.filter_seen = filter_->count() > 0 ? filter_seen_ : run.recipe->evaluate.filter_seen;
    options_.seed = static_cast<uint64_t>(globals.seed);
    options_.progress = true;
    ordered_json json{{"protocol", protocol(run, data, split)}};
    if (!globals.json) print_protocol(run, data, split);
    const BaselineResult baselines = evaluate_baselines(data.log, split, ks_, options_.filter_seen);
    for (const Part part : {Part::kTest, Part::kValid}) {
      const char* name = part == Part::kTest ? "test" : "valid";
      const std::vector<Row> rows = evaluate_part(run, data.log, split, part, baselines.of(part));
      for (const Row& row : rows) {
        json[name][row.name] = metrics_json(row.metrics);
        json["intervals"][name][row.name] = intervals_json(row.metrics);
      }
      if (!globals.json) print_part(name, rows);
      if (part == Part::kTest) compare(rows);
    }
    if (globals.json) fmt::print("{}", dump(json));
    return 0;
  }

 private:
  std::vector<Row> evaluate_part(const Run& run, const Interactions& log, const Split& split, Part part,
                                 const BaselinePart& baselines) const {
    const RankMetrics model = evaluate_model(*run.model, log, split, part, ks_, options_);
    std::vector<Row> rows = {{"model", model.with_intervals(options_.seed)}};
    if (options_.sampled > 0) return rows;  // the baselines rank all items
    rows.push_back({"popularity", baselines.popularity.with_intervals(options_.seed)});
    rows.push_back({"markov", baselines.markov.with_intervals(options_.seed)});
    return rows;
  }

  Protocol full_ranking(const Run& run, const RunLog& data, const Split& split) const {
    return {run.recipe->data, split, data.log.items.size(), options_.filter_seen};
  }

  ordered_json protocol(const Run& run, const RunLog& data, const Split& split) const {
    ordered_json json = protocol_json(full_ranking(run, data, split));
    if (options_.sampled > 0) {
      json["ranking"] = fmt::format("sampled: {} negatives, seed {}", options_.sampled, options_.seed);
      json.erase("text");
    }
    json["file"] = data.file;
    json["mixer"] = run.recipe->model.model.mixer;
    json["epoch"] = run.state.epoch;
    return json;
  }

  void print_protocol(const Run& run, const RunLog& data, const Split& split) const {
    fmt::print("{}: {} of epoch {}\n{}\n", data.file, run.recipe->model.model.mixer, run.state.epoch,
               full_ranking(run, data, split).text());
    if (options_.sampled > 0)
      fmt::print("SAMPLED ranking among {} negatives (seed {}): not comparable with full ranking\n",
                 options_.sampled, options_.seed);
  }

  std::string run_, data_;
  std::vector<int64_t> ks_;
  bool filter_seen_ = true;
  CLI::Option* filter_ = nullptr;
  EvaluateOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_evaluate() { return std::make_unique<Evaluate>(); }

}  // namespace prism::cli
