#pragma once
#include <string>
#include <vector>

#include "prism/compare/comparison.h"
#include "table.h"

namespace prism::cli {

/// What each variant reached: a row a variant with a recommendation log (the baselines below), a row a probe
/// or a length with a column a variant otherwise. Means over seeds, "mean ± deviation" where there are
/// several.
Table result_table(CompareTask task, const std::vector<SummaryRow>& rows);

/// What it cost: parameters and how they were matched, speed, state and memory.
Table cost_table(CompareTask task, const std::vector<SummaryRow>& rows);

/// A row a cell with every figure, for other programs.
Table cell_table(const Plan& plan, const CompareFolder& folder);

}  // namespace prism::cli
