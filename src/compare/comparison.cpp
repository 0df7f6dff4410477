#include "prism/compare/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "compare/process_pool.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/text.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

std::string cell_name(const Cell& cell) { return cell.path.string(); }

void write_or_compare(const fs::path& file, const std::string& text) {
  if (!fs::exists(file)) return write_file(file, text);
  if (read_file(file) != text)
    usage_error(
        "compare: {} was made with other settings or for another log; choose another folder with --out",
        file.string());
}

/// Writes what a cell's process needs. Whether the cell still has to run; Error for a result that is not its
/// own.
bool prepare(const Cell& cell, const CellFolder& folder) {
  require_writable_folder(folder.root());
  write_or_compare(folder.cell(), cell.cell_toml);
  write_or_compare(folder.recipe(), cell.recipe_toml);
  return !read_figures(folder);
}

/// Bytes that the pending cells write: each leaves a checkpoint with its moments and the best one, and those
/// that run hold another of each while it is written.
int64_t bytes_needed(const CompareRecipe& recipe, const Plan& plan, const std::vector<const Cell*>& pending) {
  constexpr int64_t kLogs = int64_t{1} << 20, kKept = 3 + 1;  // parameters a checkpoint
  int64_t kept = 0, largest = 0;
  for (const Cell* cell : pending) {
    kept += kLogs;
    if (recipe.compare.task != CompareTask::kRecommendation) continue;  // others keep no weights
    for (const PlannedModel& model : plan.models)
      if (model.variant == cell->config.variant && model.item == cell->config.item) {
        const int64_t bytes = kKept * model.parameters.total * int64_t{sizeof(float)};
        kept += bytes, largest = std::max(largest, bytes);
      }
  }
  return kept + largest * std::min(recipe.compare.jobs, static_cast<int64_t>(pending.size()));
}

std::string last_line(const fs::path& log) {
  std::string text = fs::exists(log) ? read_file(log) : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return shortened(text.substr(text.find_last_of('\n') + 1), 300);
}

/// "NDCG@10 0.1034", the figure to watch.
std::string headline(const CellFolder& folder) {
  const auto figures = read_figures(folder);
  for (const char* name : {"test NDCG@10", "accuracy", "train_tokens_per_second"})
    for (const auto& [figure, value] : *figures)
      if (figure == name) return fmt::format("{} {:.5g}", name, value);
  return "done";
}

}  // namespace

CompareOutcome run_comparison(const CompareRecipe& recipe, const Plan& plan, const CompareFolder& folder,
                              const CellCommand& command) {
  if (fs::exists(folder.root() / "config.toml") && !fs::exists(folder.recipe()))
    usage_error("compare: {} is a run folder of prism train; choose another folder with --out",
                folder.root().string());
  std::vector<const Cell*> pending;
  std::vector<Job> jobs;
  for (const Cell& cell : plan.cells) {
    const CellFolder own = folder.cell(cell);
    if (!prepare(cell, own)) continue;
    Job job{.command = {command.program.string()}, .log = own.log()};
    job.command.insert(job.command.end(), command.arguments.begin(), command.arguments.end());
    job.command.push_back(own.root().string());
    pending.push_back(&cell);
    jobs.push_back(std::move(job));
  }
  const size_t before = plan.cells.size() - jobs.size();
  if (before > 0) info("{} of {} cells are finished already", before, plan.cells.size());
  require_writable_folder(folder.root(), bytes_needed(recipe, plan, pending));
  write_file(folder.recipe(), recipe.to_toml());

  CompareOutcome outcome;
  size_t done = before;
  outcome.signal = run_jobs(jobs, recipe.compare.jobs, [&](size_t i, int status) {
    const Cell& cell = *pending[i];
    const CellFolder own = folder.cell(cell);
    if (status == 128 + SIGINT || status == 128 + SIGTERM) return;
    if (status == 0) {
      info("[{}/{}] {}: {}", ++done, plan.cells.size(), cell_name(cell), headline(own));
    } else {
      outcome.failed.push_back(
          fmt::format("{} (status {}): {}", cell_name(cell), status, last_line(own.log())));
      warn("cell {}", outcome.failed.back());
    }
  });
  if (outcome.signal)
    info("stopped with {} of {} cells finished; the same command goes on", done, plan.cells.size());
  return outcome;
}

}  // namespace prism
