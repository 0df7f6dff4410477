#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "prism/compare/comparison.h"

namespace prism {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) { return std::isnan(value) ? ordered_json(nullptr) : ordered_json(value); }

ordered_json row_json(const SummaryRow& row) {
  const PlannedModel& model = row.model;
  ordered_json json{{"variant", model.variant},
                    {"mixer", model.mixer},
                    {"item", model.item},
                    {"parameters", model.parameters.total},
                    {"parameters_outside_item_table", model.parameters.outside()},
                    {"width", model.width},
                    {"ffn_width", model.ffn_width},
                    {"matched_by", std::string(enum_name(model.matched))},
                    {"finished", row.seeds},
                    {"planned", row.planned},
                    {"figures", ordered_json::object()}};
  for (const auto& [name, spread] : row.figures) {
    auto values = ordered_json::array();
    for (const double value : spread.values) values.push_back(number(value));
    json["figures"][name] = {
        {"mean", number(spread.mean())}, {"deviation", number(spread.deviation())}, {"values", values}};
  }
  return json;
}

}  // namespace

double Spread::mean() const {
  if (values.empty()) return std::nan("");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Spread::deviation() const {
  if (values.size() < 2) return std::nan("");
  double squares = 0;
  for (const double value : values) squares += (value - mean()) * (value - mean());
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double SummaryRow::mean(const std::string& figure) const {
  const auto found = figures.find(figure);
  return found == figures.end() ? std::nan("") : found->second.mean();
}

double SummaryRow::deviation(const std::string& figure) const {
  const auto found = figures.find(figure);
  return found == figures.end() ? std::nan("") : found->second.deviation();
}

std::vector<SummaryRow> summarise(const Plan& plan, const CompareFolder& folder) {
  std::vector<SummaryRow> rows;
  for (const PlannedModel& model : plan.models) {
    SummaryRow row{.model = model};
    for (const Cell& cell : plan.cells) {
      if (cell.config.variant != model.variant || cell.config.item != model.item) continue;
      ++row.planned;
      const auto figures = read_figures(folder.cell(cell));
      if (!figures) continue;
      ++row.seeds;
      for (const auto& [name, value] : *figures) row.figures[name].values.push_back(value);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string summary_json(const CompareRecipe& recipe, const std::vector<SummaryRow>& rows) {
  auto all = ordered_json::array();
  for (const SummaryRow& row : rows) all.push_back(row_json(row));
  const CompareConfig& config = recipe.compare;
  ordered_json json{
      {"task", std::string(enum_name(config.task))},
      {"match", config.match},
      {"tolerance", config.tolerance},
      {"reference", config.reference.empty() && !rows.empty() ? rows[0].model.variant : config.reference}};
  if (config.task != CompareTask::kSpeed) json["seeds"] = config.seeds;  // a layer's speed has none
  json["jobs"] = config.jobs;
  json["rows"] = std::move(all);
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace prism
