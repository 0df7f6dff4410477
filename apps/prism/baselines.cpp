// prism baselines FILE: how far popularity and first-order transitions come.
#include "prism/evaluate/baselines.h"

#include <fmt/format.h>

#include "commands.h"
#include "log_json.h"
#include "prism/core/log.h"
#include "table.h"

namespace prism::cli {
namespace {

struct BaselinesConfig {
  std::vector<int64_t> ks = {10, 20, 50, 200, 500};
  bool filter_seen = true;
  static constexpr auto fields =
      std::tuple{Field{"ks", &BaselinesConfig::ks, Range{1, 1e9}, "", "cut-offs of HR and NDCG"},
                 Field{"filter_seen", &BaselinesConfig::filter_seen, Any{}, "",
                       "items of the history are no candidates; a target that was seen before stays one"}};
};

class BaselinesCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("FILE", file_, "the interactions; the same as --file");
    settings_.bind("data", data_);
    settings_.bind("evaluate", config_);
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    if (!file_.empty()) data_.file = file_;
    ReadReport report;
    const Interactions log = read_interactions(data_, report);
    for (const std::string& line : report.text()) info("{}", line);
    const Split split(log, data_);
    const BaselineResult result = evaluate_baselines(log, split, config_.ks, config_.filter_seen);
    const auto seed = static_cast<uint64_t>(globals.seed);
    if (globals.json)
      print_json(log, split, result, seed);
    else
      print_text(log, split, result, seed);
    return 0;
  }

 private:
  static constexpr std::pair<Part, const char*> kParts[] = {{Part::kTest, "test"}, {Part::kValid, "valid"}};

  Protocol protocol(const Interactions& log, const Split& split) const {
    return {data_, split, log.items.size(), config_.filter_seen};
  }

  void print_json(const Interactions& log, const Split& split, const BaselineResult& result,
                  uint64_t seed) const {
    nlohmann::ordered_json json{{"counts", counts_json(count_log(log))},
                                {"protocol", protocol_json(protocol(log, split))}};
    for (const auto& [part, name] : kParts) {
      const BaselinePart& figures = result.of(part);
      const auto popularity = figures.popularity.with_intervals(seed),
                 markov = figures.markov.with_intervals(seed);
      json[name] = {{"popularity", metrics_json(popularity)}, {"markov", metrics_json(markov)}};
      json["intervals"][name] = {{"popularity", intervals_json(popularity)},
                                 {"markov", intervals_json(markov)}};
      json["seen_targets"][name] = figures.popularity.seen_targets();
      if (config_.filter_seen && figures.popularity.seen_targets() > 0)
        json["seen_target_is_a_miss"][name] = {
            {"popularity", metrics_json(figures.popularity.means_with_seen_targets_missed())},
            {"markov", metrics_json(figures.markov.means_with_seen_targets_missed())}};
    }
    fmt::print("{}", dump(json));
  }

  void print_text(const Interactions& log, const Split& split, const BaselineResult& result,
                  uint64_t seed) const {
    fmt::print("{}\n", protocol(log, split).text());
    for (const auto& [part, name] : kParts) {
      const BaselinePart& figures = result.of(part);
      const auto popularity = figures.popularity.with_intervals(seed),
                 markov = figures.markov.with_intervals(seed);
      Table table({name, "popularity", "95 % interval", "Markov", "95 % interval"});
      for (size_t m = 0; m < popularity.size(); ++m)
        table.add({popularity[m].name, popularity[m].value, interval(popularity[m]), markov[m].value,
                   interval(markov[m])});
      fmt::print("\n{}", table.to_string(TableFormat::kText));
      if (figures.popularity.seen_targets() > 0)
        fmt::print("{} targets are in their user's history\n", figures.popularity.seen_targets());
    }
  }

  static std::string interval(const Metric& metric) {
    return metric.name == "mean_rank" ? fmt::format("{:.1f} .. {:.1f}", metric.low, metric.high)
                                      : fmt::format("{:.4f} .. {:.4f}", metric.low, metric.high);
  }

  std::string file_;
  DataConfig data_;
  BaselinesConfig config_;
  Settings settings_;
  SettingFlags flags_;
};

}  // namespace

std::unique_ptr<Command> make_baselines() { return std::make_unique<BaselinesCommand>(); }

}  // namespace prism::cli
