#include "log_json.h"

#include <fmt/format.h>

#include <cmath>

#include "prism/core/text.h"

namespace prism::cli {
namespace {

using Json = nlohmann::ordered_json;

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json figure(double value) { return std::isnan(value) ? Json(nullptr) : Json(value); }
Json size_json(const LogSize& size) {
  return {{"users", size.users}, {"items", size.items}, {"interactions", size.interactions}};
}

}  // namespace

Json counts_json(const LogCounts& counts) {
  return {{"users", counts.users},
          {"items", counts.items},
          {"interactions", counts.interactions},
          {"length_min", counts.length_min},
          {"length_median", counts.length_median},
          {"length_max", counts.length_max},
          {"length_mean", counts.length_mean},
          {"repeated_user_item_rows", counts.repeated_user_item_rows},
          {"immediate_repeats", counts.immediate_repeats}};
}

Json read_json(const ReadReport& r) {
  return {{"file", r.file},
          {"format", r.format},
          {"separator", r.separator},
          {"encoding", r.encoding},
          {"gzip", r.gzip},
          {"header", r.header},
          {"columns", r.columns},
          {"user_column", text_or_null(r.user)},
          {"item_column", text_or_null(r.item)},
          {"time_column", text_or_null(r.time)},
          {"rating_column", text_or_null(r.rating)},
          {"event_column", text_or_null(r.event)},
          {"lines", r.lines},
          {"rows", r.rows},
          {"blank_lines", r.blank_lines},
          {"interactions", r.interactions},
          {"below_min_rating", r.below_min_rating},
          {"other_events", r.other_events},
          {"exact_duplicates", r.exact_duplicates},
          {"duplicates_dropped", r.duplicates_dropped},
          {"unsorted_users", r.unsorted_users},
          {"adjacent_equal_timestamps", r.tied_pairs},
          {"negative_timestamps", r.negative_times},
          {"filter",
           {{"before", size_json(r.before)}, {"after", size_json(r.after)}, {"rounds", r.filter_rounds}}}};
}

Json protocol_json(const Protocol& protocol) { return Json::parse(protocol.to_json()); }

Json metrics_json(const std::vector<Metric>& metrics) {
  Json json = Json::object();
  for (const Metric& metric : metrics) json[metric.name] = figure(metric.value);
  return json;
}

Json intervals_json(const std::vector<Metric>& metrics) {
  Json json = Json::object();
  for (const Metric& metric : metrics) json[metric.name] = {figure(metric.low), figure(metric.high)};
  return json;
}

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace prism::cli
