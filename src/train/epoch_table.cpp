#include "train/epoch_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "prism/core/text.h"

namespace prism {
namespace {

/// HR@10, NDCG@10, MRR and the metric that picks the best epoch.
std::vector<std::string> columns(const std::string& metric) {
  std::vector<std::string> names = {"HR@10", "NDCG@10", "MRR"};
  if (std::find(names.begin(), names.end(), metric) == names.end()) names.push_back(metric);
  return names;
}

std::string cells(const std::map<std::string, double>& metrics, const std::string& metric) {
  std::string text;
  for (const std::string& name : columns(metric)) {
    const auto found = metrics.find(name);
    text += fmt::format(" {:>9}", figure_text(found == metrics.end() ? std::nan("") : found->second));
  }
  return text;
}

}  // namespace

std::string figure_text(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4f}", value); }

std::string epoch_table_head(const std::string& metric) {
  std::string text = fmt::format("{:>10} {:>8}", "epoch", "loss");
  for (const std::string& name : columns(metric)) text += fmt::format(" {:>9}", name);
  return text + fmt::format(" {:>8} {:>12}", "time", "positions/s");
}

std::string epoch_table_row(const EpochRow& row, const std::string& metric) {
  return fmt::format("{:>10} {:>8}{} {:>8} {:>12}{}", row.epoch, figure_text(row.loss),
                     cells(row.valid, metric), format_duration(row.seconds),
                     with_commas(std::llround(row.positions_per_second)), row.best ? "  best" : "");
}

std::string epoch_table_row(const std::string& name, const std::map<std::string, double>& metrics,
                            const std::string& metric) {
  return fmt::format("{:>10} {:>8}{}", name, "", cells(metrics, metric));
}

}  // namespace prism
