// prism recommend RUN: lists for a user of the log, for a history, for a file of histories, or for everyone.
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "commands.h"
#include "id_lists.h"
#include "list_writer.h"
#include "prism/core/error.h"
#include "prism/core/interrupt.h"
#include "prism/core/log.h"
#include "prism/core/progress.h"
#include "prism/core/text.h"
#include "prism/ops/device.h"
#include "prism/serve/open_service.h"
#include "prism/serve/run_log.h"

namespace prism::cli {
namespace {

void report_unknown(const std::string& name, const std::vector<std::string>& unknown) {
  if (unknown.empty()) return;
  const size_t shown = std::min<size_t>(unknown.size(), 5);
  std::vector<std::string> names;
  for (size_t i = 0; i < shown; ++i) names.push_back("\"" + shortened(unknown[i]) + "\"");
  warn("{}{} unknown {} skipped: {}{}", name, unknown.size(), unknown.size() == 1 ? "item is" : "items are",
       fmt::join(names, ", "), shown < unknown.size() ? ", ..." : "");
}

/// `name`: of the list, where there are several.
void report(const std::string& name, const Recommendations& list) {
  report_unknown(name, list.unknown);
  if (!list.note.empty()) info("{}{}", name, list.note);
}

class Recommend : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train")->required();
    auto* who = app.add_option_group("For whom (one of these)");
    user_option_ = who->add_option("--user", user_, "a user of the log, from the whole history");
    items_option_ =
        who->add_option("--items", items_, "a history, oldest first: a,b,c; \"\" for someone new");
    input_option_ = who->add_option(
        "--input", input_,
        "a file of histories, one a line, items between tabs or blanks; - reads the standard input");
    who->add_flag("--all-users", all_users_, "every user of the log");
    who->require_option(1);
    app.add_option("--top,-k", options_.top, "length of a list")
        ->check(CLI::Range(1, 1000000000))
        ->capture_default_str();
    app.add_flag("!--no-filter-seen", options_.filter_seen, "also items of the history");
    allow_option_ = app.add_option("--allow", allow_, "only these items: a,b,c or @FILE with one a line");
    app.add_option("--exclude", exclude_, "never these items: a,b,c or @FILE with one a line");
    app.add_option("--data", data_, "the log, where it is not the file that the run was trained on");
    app.add_option("--format", format_,
                   "table, csv or json (one object a line); default: table, csv for --all-users")
        ->check(CLI::IsMember({"table", "csv", "json"}));
    app.add_option("--out,-o", out_, "a file instead of the standard output; it appears when it is complete");
  }

  int run(const Globals& globals) override {
    options_.allow = split_ids(allow_);
    check(allow_option_->count() == 0 || !options_.allow.empty(),
          "--allow {}: names no item, so nothing is allowed", allow_);
    options_.exclude = split_ids(exclude_);
    const Run run = open_run(run_, require_device(globals.device));
    RecommenderService service = make_service(run);
    std::optional<RunLog> data;
    if (all_users_ || user_option_->count() > 0) data = read_run_log(run, data_);
    std::optional<InterruptGuard> interrupts;
    if (all_users_) interrupts.emplace();
    Output output(out_);
    ListWriter writer(output, format(globals), !run.titles.empty(),
                      input_option_->count() == 0 ? "user" : "line");
    const int status = all_users_ ? everyone(data->log, service, writer) : some(data, service, writer);
    if (status != 0) return status;
    writer.finish();
    output.commit();
    return 0;
  }

 private:
  ListFormat format(const Globals& globals) const {
    if (globals.json || format_ == "json") return ListFormat::kJson;
    if (format_ == "csv" || (format_.empty() && all_users_)) return ListFormat::kCsv;
    return ListFormat::kTable;
  }

  int some(const std::optional<RunLog>& data, RecommenderService& service, ListWriter& writer) {
    if (input_option_->count() > 0)
      from_file(service, writer);
    else if (items_option_->count() > 0)
      one("", service.recommend(split_ids(items_), options_), writer);
    else
      for_user(*data, service, writer);
    return 0;
  }

  void one(std::string_view name, const Recommendations& list, ListWriter& writer) {
    writer.add(name, list);
    report(input_option_->count() == 0 ? "" : fmt::format("line {}: ", name), list);
  }

  void for_user(const RunLog& data, RecommenderService& service, ListWriter& writer) {
    const Interactions& log = data.log;
    const int64_t user = log.users.find(user_);
    check(user >= 0, "user \"{}\" is not among the {} users of {}; --items takes the history of someone else",
          shortened(user_), with_commas(log.users.size()), data.file);
    one(user_, service.recommend_user(log, user, options_), writer);
  }

  /// Lists are named by their lines.
  void from_file(RecommenderService& service, ListWriter& writer) {
    check(!std::filesystem::is_directory(input_), "{}: is a folder, not a file of histories", input_);
    std::ifstream file;
    if (input_ != "-") file.open(input_);
    std::istream& stream = input_ == "-" ? std::cin : file;
    check(stream.good(), "\"{}\": cannot be read", input_);
    int64_t number = 0;
    for (std::string line; std::getline(stream, line);)
      one(std::to_string(++number), service.recommend(split_history(line), options_), writer);
    check(!stream.bad(), "{}: could not be read after line {}", input_, number);
  }

  int everyone(const Interactions& log, RecommenderService& service, ListWriter& writer) {
    const int64_t users = log.users.size();
    Progress progress("recommend", users, "users");
    int64_t done = 0;
    const auto write = [&](int64_t first, const BatchRecommendations& lists) {
      write_block(log, service, first, lists, writer);
      done += static_cast<int64_t>(lists.found.size());
      progress.advance(static_cast<int64_t>(lists.found.size()));
      return InterruptGuard::pending() == 0;
    };
    const std::vector<std::string> unknown = service.recommend_all(log, options_, write);
    progress.finish();
    report_unknown("", unknown);
    const int signal = InterruptGuard::pending();
    if (signal == 0 || done == users) return 0;
    warn("stopped after {} of {} users{}", with_commas(done), with_commas(users),
         out_.empty() ? "" : "; " + out_ + " was not written");
    return 128 + signal;
  }

  static void write_block(const Interactions& log, const RecommenderService& service, int64_t first,
                          const BatchRecommendations& lists, ListWriter& writer) {
    std::vector<ListItem> items;
    for (size_t u = 0; u < lists.found.size(); ++u) {
      items.clear();
      for (int64_t i = 0; i < lists.found[u]; ++i) {
        const auto at = u * static_cast<size_t>(lists.top) + static_cast<size_t>(i);
        items.push_back(
            {service.vocabulary().name(lists.items[at]), service.title(lists.items[at]), lists.scores[at]});
      }
      const int64_t user = first + static_cast<int64_t>(u);
      writer.add(log.users.name(user), items, log.length(user) == 0);
    }
  }

  RecommendOptions options_;
  std::string run_, user_, items_, input_, allow_, exclude_, data_, format_, out_;
  bool all_users_ = false;
  CLI::Option *items_option_ = nullptr, *user_option_ = nullptr, *input_option_ = nullptr,
              *allow_option_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> make_recommend() { return std::make_unique<Recommend>(); }

}  // namespace prism::cli
