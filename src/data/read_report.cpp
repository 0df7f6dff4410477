#include <fmt/ranges.h>

#include "prism/core/text.h"
#include "prism/data/reader.h"

namespace prism {
namespace {

std::string main_line(const ReadReport& r) {
  const bool table = r.format == "csv" || r.format == "inter";
  std::string line = fmt::format(
      "read {}: {}-separated{}, {}{}", counted(r.rows, table ? "row" : "line", table ? "rows" : "lines"),
      r.separator, r.header || !table ? "" : " without header", r.encoding, r.gzip ? ", gzip" : "");
  if (!table)
    return line + (r.format == "pairs" ? ", \"user item\" a line" : ", \"user item item ...\" a line");
  line += fmt::format(", columns {} {}", r.user, r.item);
  return r.time.empty() ? line + "; no timestamps, in file order" : line + " " + r.time;
}

/// What the reader made of a table's other columns, so that a date or rating under an unknown name is not
/// missed.
void tell_other_columns(const ReadReport& r, std::vector<std::string>& out) {
  if (!r.rating.empty())
    out.push_back(fmt::format("ratings in column {} (--min-rating selects by them)", r.rating));
  if (!r.event.empty() && r.other_events == 0)
    out.push_back(
        fmt::format("column {} looks like kinds of events: all count (--events keeps some)", r.event));
  if (!r.title.empty())
    out.push_back(
        fmt::format("column {} looks like titles, which a log does not give: --titles {} reads them "
                    "(--titles none: there are none)",
                    r.title, r.file));
  if (!r.time.empty() || !r.header) return;
  std::vector<std::string> unused;
  for (const std::string& column : r.columns)
    if (!column.empty() && column != r.user && column != r.item && column != r.rating && column != r.event &&
        column != r.title)
      unused.push_back(column);
  if (!unused.empty())
    out.push_back(fmt::format("not used: {}; --time-column names the column of times",
                              shortened(fmt::format("{}", fmt::join(unused, ", ")), 200)));
}

std::string filter_line(const ReadReport& r) {
  const auto size = [](const LogSize& s) {
    return fmt::format("{} users, {} items, {} interactions", with_commas(s.users), with_commas(s.items),
                       with_commas(s.interactions));
  };
  return fmt::format("filter: {} -> {} ({})", size(r.before), size(r.after),
                     counted(r.filter_rounds, "round", "rounds"));
}

}  // namespace

std::vector<std::string> ReadReport::text() const {
  std::vector<std::string> out{main_line(*this)};
  tell_other_columns(*this, out);
  const auto say = [&](int64_t count, const char* one, const char* many, const std::string& rest) {
    if (count > 0) out.push_back(counted(count, one, many) + rest);
  };
  say(blank_lines, "blank line", "blank lines", " skipped");
  say(below_min_rating, "row", "rows", " below --min-rating dropped");
  say(other_events, "row", "rows", " with other events dropped");
  say(exact_duplicates, "row repeats", "rows repeat",
      fmt::format(" user, item and timestamp of an earlier one: {}",
                  duplicates_dropped ? "dropped" : "kept (duplicates = drop_exact drops them)"));
  say(negative_times, "timestamp", "timestamps", " before 1970");
  say(tied_pairs, "pair", "pairs", " of neighbours with equal timestamps");
  say(unsorted_users, "user was", "users were", " not in time order in the file: sorted");
  if (format == "sequences")
    say(continued_lines, "line continues", "lines continue", " a user of an earlier line");
  if (filter_rounds > 0) out.push_back(filter_line(*this));
  return out;
}

}  // namespace prism
