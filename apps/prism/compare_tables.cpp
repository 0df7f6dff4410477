#include "compare_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace prism::cli {
namespace {

constexpr const char* kMetrics[] = {"HR@10", "NDCG@10", "HR@200", "MRR", "AUC"};

/// Adds "0.1034 ± 0.0021", or what there is of it.
void add_with_deviation(std::vector<Cell>& cells, const SummaryRow& row, const std::string& figure) {
  const double mean = row.mean(figure), deviation = row.deviation(figure);
  if (std::isnan(mean))
    cells.emplace_back();
  else if (std::isnan(deviation))
    cells.emplace_back(fmt::format("{:.4f}", mean));
  else
    cells.emplace_back(fmt::format("{:.4f} ± {:.4f}", mean, deviation));
}

Cell rounded(double value) {
  if (std::isnan(value)) return {};
  return static_cast<int64_t>(std::llround(value));
}

std::string seeds_text(const SummaryRow& row) {
  return row.seeds == row.planned ? std::to_string(row.seeds)
                                  : fmt::format("{} of {}", row.seeds, row.planned);
}

Table recommendation_table(const std::vector<SummaryRow>& rows) {
  std::vector<std::string> columns = {"variant"};
  columns.insert(columns.end(), std::begin(kMetrics), std::end(kMetrics));
  columns.insert(columns.end(), {"validation NDCG@10", "seeds"});
  Table table(std::move(columns), 4);
  for (const SummaryRow& row : rows) {
    std::vector<Cell> cells = {row.model.variant};
    for (const char* metric : kMetrics) add_with_deviation(cells, row, std::string("test ") + metric);
    add_with_deviation(cells, row, "valid NDCG@10");
    cells.emplace_back(seeds_text(row));
    table.add(std::move(cells));
  }
  const auto measured =
      std::find_if(rows.begin(), rows.end(), [](const SummaryRow& row) { return row.seeds > 0; });
  if (measured == rows.end()) return table;
  for (const char* baseline : {"markov", "popularity"}) {  // the same with every seed
    std::vector<Cell> cells = {std::string(baseline)};
    for (const char* metric : kMetrics)
      cells.emplace_back(measured->mean(fmt::format("{} test {}", baseline, metric)));
    cells.insert(cells.end(), {measured->mean(fmt::format("{} valid NDCG@10", baseline)), std::monostate{}});
    table.add(std::move(cells));
  }
  return table;
}

/// The first that a row of the item knows.
double chance_of(const std::string& item, const std::vector<SummaryRow>& rows) {
  for (const SummaryRow& row : rows)
    if (row.model.item == item && !std::isnan(row.mean("chance"))) return row.mean("chance");
  return std::nan("");
}

/// Items down, variants across.
Table grid(CompareTask task, const std::vector<SummaryRow>& rows) {
  const bool probe = task == CompareTask::kProbe;
  std::vector<std::string> columns = {probe ? "probe" : "tokens/s, training"}, items;
  if (probe) columns.emplace_back("chance");
  for (const SummaryRow& row : rows) {
    if (items.empty() || items.back() != row.model.item) items.push_back(row.model.item);
    if (items.size() == 1) columns.push_back(row.model.variant);
  }
  Table table(std::move(columns), 4);
  for (const std::string& item : items) {
    std::vector<Cell> cells = {item};
    if (probe) cells.emplace_back(chance_of(item, rows));
    for (const SummaryRow& row : rows) {
      if (row.model.item != item) continue;
      if (probe)
        add_with_deviation(cells, row, "accuracy");
      else
        cells.push_back(rounded(row.mean("train_tokens_per_second")));
    }
    table.add(std::move(cells));
  }
  return table;
}

/// The layer's own costs: of one pass in each direction and of one token more.
Table layer_cost_table(const std::vector<SummaryRow>& rows) {
  Table table({"tokens", "variant", "parameters", "forward tokens/s", "training tokens/s", "step µs",
               "state bytes", "peak MiB"},
              1);
  for (const SummaryRow& row : rows)
    table.add({row.model.item, row.model.variant, rounded(row.mean("layer_parameters")),
               rounded(row.mean("forward_tokens_per_second")), rounded(row.mean("train_tokens_per_second")),
               1e6 * row.mean("step_seconds"), rounded(row.mean("state_bytes")),
               rounded(row.mean("peak_memory_bytes") / (1 << 20))});
  return table;
}

}  // namespace

Table result_table(CompareTask task, const std::vector<SummaryRow>& rows) {
  return task == CompareTask::kRecommendation ? recommendation_table(rows) : grid(task, rows);
}

Table cost_table(CompareTask task, const std::vector<SummaryRow>& rows) {
  if (task == CompareTask::kSpeed) return layer_cost_table(rows);
  const bool probe = task == CompareTask::kProbe;
  Table table({probe ? "probe" : "log", "variant", "parameters", "outside item table", "width", "FFN width",
               "matched by", probe ? "updates" : "epochs", "training positions/s", "evaluation s",
               "state bytes", "peak MiB"},
              2);
  for (const SummaryRow& row : rows) {
    const PlannedModel& model = row.model;
    table.add({model.item, model.variant, model.parameters.total, model.parameters.outside(), model.width,
               model.ffn_width > 0 ? Cell(model.ffn_width) : Cell(), std::string(enum_name(model.matched)),
               rounded(row.mean(probe ? "updates" : "epochs")), rounded(row.mean("positions_per_second")),
               row.mean("evaluation_seconds"), rounded(row.mean("state_bytes")),
               rounded(row.mean("peak_memory_bytes") / (1 << 20))});
  }
  return table;
}

Table cell_table(const Plan& plan, const CompareFolder& folder) {
  std::vector<std::optional<Figures>> all;
  std::vector<std::string> names;
  for (const prism::Cell& cell : plan.cells) {
    all.push_back(read_figures(folder.cell(cell)));
    if (!all.back()) continue;
    for (const auto& [name, value] : *all.back())
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::vector<std::string> columns = {"variant", "item", "seed"};
  columns.insert(columns.end(), names.begin(), names.end());
  Table table(std::move(columns));
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const prism::Cell& cell = plan.cells[i];
    std::vector<Cell> cells = {cell.config.variant, cell.config.item, cell.seed};
    for (const std::string& name : names) {
      const auto found = std::find_if(all[i]->begin(), all[i]->end(),
                                      [&](const auto& figure) { return figure.first == name; });
      if (found == all[i]->end())
        cells.emplace_back();
      else
        cells.emplace_back(found->second);
    }
    table.add(std::move(cells));
  }
  return table;
}

}  // namespace prism::cli
