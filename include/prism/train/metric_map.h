#pragma once
#include <map>
#include <string>

namespace prism {

/// Validation metrics by name: "HR@10" -> value.
using MetricMap = std::map<std::string, double>;

}  // namespace prism
