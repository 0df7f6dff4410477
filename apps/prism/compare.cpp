// prism compare RECIPE: variants on one task with one budget, as tables and a picture.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "commands.h"
#include "compare_tables.h"
#include "prism/compare/comparison.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "prism/ops/device.h"
#include "python_script.h"

namespace prism::cli {
namespace {

class CompareCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>& arguments) override {
    threads_given_ = !peek_argument(arguments, "--threads").empty();
    recipe_ = starting_recipe(arguments);
    app.add_option("RECIPE", source_,
                   "what to compare (.toml with a section [compare]); default: flags alone");
    app.add_flag("--dry-run", dry_run_, "print the models and their parameters, stop");
    app.add_option("--python", python_, "Python with matplotlib (default: $PRISM_PYTHON, else python3)");
    app.add_option("--run-cell", cell_,
                   "measure the cell of this folder, as the command has its processes do");
    flags_.declare(app, recipe_->settings);
  }

  int run(const Globals& globals) override {
    const c10::Device device = require_device(globals.device);
    if (!cell_.empty()) return exit_status(run_cell(CellFolder(cell_), device));
    if (!source_.empty() && !source_.ends_with(".toml"))
      usage_error("compare: {}: a comparison is a .toml recipe; name a log with --file", source_);
    flags_.apply(recipe_->settings);
    const CompareConfig& config = recipe_->compare;
    if (config.task == CompareTask::kSpeed && config.jobs > 1)
      usage_error("compare: speed is measured by one process at a time; leave --jobs out");
    const Plan plan = plan_comparison(*recipe_);
    const CompareFolder folder(config.out.empty() ? "runs/compare" : config.out);
    if (dry_run_) {
      print(summarise(plan, folder), false, globals.json);
      return 0;
    }
    const CompareOutcome outcome = run_comparison(*recipe_, plan, folder, command(globals));
    const std::vector<SummaryRow> rows = summarise(plan, folder);
    write_files(plan, folder, rows);
    print(rows, true, globals.json);
    if (outcome.signal) return exit_status(outcome.signal);
    info("{}: {}", draw(folder) ? "tables and picture" : "tables", folder.root().string());
    return outcome.failed.empty() ? 0 : 1;
  }

 private:
  static std::unique_ptr<CompareRecipe> starting_recipe(const std::vector<std::string>& arguments) {
    for (const std::string& word : arguments)
      if (word.ends_with(".toml")) return CompareRecipe::read(word);
    const std::string mixer = peek_argument(arguments, "--mixer");
    return mixer.empty() ? std::make_unique<CompareRecipe>() : std::make_unique<CompareRecipe>(mixer);
  }

  static int exit_status(int signal) { return signal ? 128 + signal : 0; }

  /// The machine's threads are shared out among the processes, unless --threads says what each gets.
  CellCommand command(const Globals& globals) const {
    const int64_t share = std::max<int64_t>(at::get_num_threads() / recipe_->compare.jobs, 1);
    return {.program = program_path(),
            .arguments = {"compare", "--threads", std::to_string(threads_given_ ? globals.threads : share),
                          "--device", globals.device, "--run-cell"}};
  }

  void print(const std::vector<SummaryRow>& rows, bool results, bool json) const {
    if (json) return fmt::print("{}", summary_json(*recipe_, rows));
    const CompareTask task = recipe_->compare.task;
    if (results) fmt::print("{}\n", result_table(task, rows).to_string(TableFormat::kText));
    fmt::print("{}", cost_table(task, rows).to_string(TableFormat::kText));
  }

  void write_files(const Plan& plan, const CompareFolder& folder, const std::vector<SummaryRow>& rows) const {
    const CompareTask task = recipe_->compare.task;
    const Table results = result_table(task, rows), costs = cost_table(task, rows);
    write_file(folder.summary(), summary_json(*recipe_, rows));
    write_file(folder.file("results.csv"), results.to_string(TableFormat::kCsv));
    write_file(folder.file("costs.csv"), costs.to_string(TableFormat::kCsv));
    write_file(folder.file("cells.csv"), cell_table(plan, folder).to_string(TableFormat::kCsv));
    write_file(folder.file("tables.md"),
               results.to_string(TableFormat::kMarkdown) + "\n" + costs.to_string(TableFormat::kMarkdown));
  }

  /// The picture is an extra: without matplotlib the tables stand, and `prism report` draws it later.
  bool draw(const CompareFolder& folder) const {
    const auto quoted = [](const std::string& word) {
      std::string text = "'";
      for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
      return text + "'";
    };
    const std::string line = quoted(python_program(python_)) + " " + quoted(python_script("compare.py")) +
                             " " + quoted(folder.root().string()) + " >&2";
    const bool drawn = std::system(line.c_str()) == 0;
    if (!drawn) warn("no picture; prism report {} --python PROGRAM draws it", folder.root().string());
    return drawn;
  }

  std::unique_ptr<CompareRecipe> recipe_;
  SettingFlags flags_;
  std::string source_, python_, cell_;
  bool dry_run_ = false, threads_given_ = false;
};

}  // namespace

std::unique_ptr<Command> make_compare() { return std::make_unique<CompareCommand>(); }

}  // namespace prism::cli
