#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "prism/data/reader.h"
#include "prism/data/split.h"
#include "prism/data/summary.h"
#include "prism/evaluate/metrics.h"
#include "prism/evaluate/protocol.h"

// The JSON objects that several commands print; docs/json.md lists their keys.
namespace prism::cli {

/// "counts".
nlohmann::ordered_json counts_json(const LogCounts& counts);
/// "read": what was detected and counted.
nlohmann::ordered_json read_json(const ReadReport& report);
/// "protocol" of full ranking.
nlohmann::ordered_json protocol_json(const Protocol& protocol);
/// {"HR@10": ...}; null for a figure that does not exist.
nlohmann::ordered_json metrics_json(const std::vector<Metric>& metrics);
/// {"HR@10": [low, high]}.
nlohmann::ordered_json intervals_json(const std::vector<Metric>& metrics);
/// Indented, with a line break at the end; bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace prism::cli
