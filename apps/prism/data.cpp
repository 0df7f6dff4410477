// prism data FILE: reads a log and says what is in it.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "commands.h"
#include "log_json.h"
#include "prism/core/text.h"
#include "prism/data/titles.h"
#include "table.h"

namespace prism::cli {
namespace {

class DataCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("FILE", file_, "the interactions; the same as --file");
    settings_.bind("data", config_);
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    if (!file_.empty()) config_.file = file_;
    ReadReport report;
    const Interactions log = read_interactions(config_, report);
    const LogCounts counts = count_log(log);
    const Split split(log, config_);
    const Titles titles = read_titles(config_, log.items);
    if (globals.json)
      print_json(report, counts, log, split, titles);
    else
      print_text(report, counts, log, split, titles, globals.quiet);
    return 0;
  }

 private:
  /// " (1998-04-23)" where `time` can be seconds since 1970 (from 1973 to 2096), else "".
  static std::string date_text(int64_t time, int32_t decimals) {
    const double seconds = static_cast<double>(time) / std::pow(10.0, decimals);
    if (seconds < 1e8 || seconds > 4e9) return "";
    const std::chrono::sys_days day{std::chrono::days(static_cast<int64_t>(seconds) / 86400)};
    const std::chrono::year_month_day date(day);
    return fmt::format(" ({}-{:02}-{:02})", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  }

  static nlohmann::ordered_json time_json(const LogCounts& counts, const Interactions& log) {
    if (!counts.timed) return nullptr;
    return {{"min", time_text(counts.time_min, log.time_decimals)},
            {"max", time_text(counts.time_max, log.time_decimals)},
            {"users_with_a_tie", counts.users_with_a_tie},
            {"users_tie_between_last_two", counts.users_tie_between_last_two}};
  }

  static void print_json(const ReadReport& report, const LogCounts& counts, const Interactions& log,
                         const Split& split, const Titles& titles) {
    nlohmann::ordered_json json{
        {"counts", counts_json(counts)}, {"read", read_json(report)}, {"time", time_json(counts, log)}};
    json["split"] = {{"training_interactions", split.train_size()},
                     {"test_users", split.cases(Part::kTest).size()},
                     {"valid_users", split.cases(Part::kValid).size()},
                     {"users_not_evaluated", split.users_not_evaluated()}};
    json["titles"] = nullptr;
    if (!titles.empty()) json["titles"] = {{"file", titles.file()}, {"known", titles.known()}};
    fmt::print("{}", dump(json));
  }

  static void print_text(const ReadReport& report, const LogCounts& counts, const Interactions& log,
                         const Split& split, const Titles& titles, bool quiet) {
    for (const std::string& line : report.text())
      if (!quiet) fmt::print("{}\n", line);
    Table table({"", "count"}, 1);
    table.add({"users", counts.users});
    table.add({"items", counts.items});
    table.add({"interactions", counts.interactions});
    table.add({"shortest history", counts.length_min});
    table.add({"median history", counts.length_median});
    table.add({"longest history", counts.length_max});
    table.add({"repeated user and item", counts.repeated_user_item_rows});
    if (counts.timed) table.add({"users whose last two tie", counts.users_tie_between_last_two});
    if (!titles.empty()) table.add({"items with a title", titles.known()});
    fmt::print("\n{}\n", table.to_string(TableFormat::kText));
    if (counts.timed)
      fmt::print("timestamps {}{} to {}{}\n", time_text(counts.time_min, log.time_decimals),
                 date_text(counts.time_min, log.time_decimals), time_text(counts.time_max, log.time_decimals),
                 date_text(counts.time_max, log.time_decimals));
    fmt::print("{}\n", split.summary());
  }

  std::string file_;
  DataConfig config_;
  Settings settings_;
  SettingFlags flags_;
};

}  // namespace

std::unique_ptr<Command> make_data() { return std::make_unique<DataCommand>(); }

}  // namespace prism::cli
