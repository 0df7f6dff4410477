#pragma once
#include <map>
#include <string>

#include "train/run_logs.h"

namespace prism {

/// A figure with four decimals; "-" for NaN.
std::string figure_text(double value);

/// The head of the table that training prints, one row an epoch.
std::string epoch_table_head(const std::string& metric);
std::string epoch_table_row(const EpochRow& row, const std::string& metric);
/// A baseline's row of the same table.
std::string epoch_table_row(const std::string& name, const std::map<std::string, double>& metrics,
                            const std::string& metric);

}  // namespace prism
