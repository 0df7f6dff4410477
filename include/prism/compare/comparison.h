#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "prism/compare/cell.h"
#include "prism/compare/plan.h"

namespace prism {

/// Names of the files of a comparison; docs/compare.md describes them.
class CompareFolder {
 public:
  explicit CompareFolder(std::filesystem::path root) : root_(std::move(root)) {}
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path recipe() const { return root_ / "compare.toml"; }
  std::filesystem::path summary() const { return root_ / "summary.json"; }
  std::filesystem::path file(const std::string& name) const { return root_ / name; }
  CellFolder cell(const Cell& cell) const { return CellFolder(root_ / "cells" / cell.path); }

 private:
  std::filesystem::path root_;
};

/// How cells are run: `program` `arguments...` FOLDER measures one and exits like run_cell.
struct CellCommand {
  std::filesystem::path program;
  std::vector<std::string> arguments = {};
};

struct CompareOutcome {
  int signal = 0;                        ///< not 0: stopped; the same command goes on
  std::vector<std::string> failed = {};  ///< cells that ended with an error, with the last line of their log
};

/// Runs the cells that have no result yet, each in a process of its own, recipe.compare.jobs at a time. Usage
/// error where the folder holds a cell of the same name with other settings.
CompareOutcome run_comparison(const CompareRecipe& recipe, const Plan& plan, const CompareFolder& folder,
                              const CellCommand& command);

/// One figure over the seeds that have it.
struct Spread {
  std::vector<double> values = {};
  double mean() const;
  double deviation() const;  ///< sample standard deviation; NaN of fewer than two
};

/// What a variant reached on an item.
struct SummaryRow {
  PlannedModel model;
  int64_t seeds = 0, planned = 0;  ///< finished cells, and all
  std::map<std::string, Spread> figures = {};
  /// Mean of a figure; NaN without it.
  double mean(const std::string& figure) const;
  double deviation(const std::string& figure) const;
};

/// In the order of plan.models.
std::vector<SummaryRow> summarise(const Plan& plan, const CompareFolder& folder);

/// summary.json: {task, match, tolerance, reference, rows: [{variant, mixer, item, parameters, ...,
/// figures}]}.
std::string summary_json(const CompareRecipe& recipe, const std::vector<SummaryRow>& rows);

}  // namespace prism
