#include "prism/data/reader.h"

#include <omp.h>

#include <algorithm>
#include <deque>
#include <future>
#include <utility>

#include "column_names.h"
#include "layout.h"
#include "log_builder.h"
#include "parse_block.h"
#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/progress.h"
#include "prism/core/text.h"
#include "shape_log.h"
#include "text_blocks.h"

namespace prism {
namespace {

constexpr int kStages = 3;       // of Vocabulary::prefetch
constexpr size_t kDistance = 8;  // rows between them

// Consumes parsed blocks in file order.
class LogReader {
 public:
  LogReader(const TextBlocks& text, const Layout& layout, const DataConfig& config, ReadReport& report)
      : text_(text),
        layout_(layout),
        automatic_(config.format == LogFormat::kAuto),
        guess_encoding_(config.encoding == Encoding::kAuto),
        report_(report),
        log_(layout.time >= 0) {}

  void consume(const ParsedBlock& block) {
    settle_encoding(block);
    for (size_t i = 0; i < block.rows.size(); ++i) {
      for (int stage = 0; stage < kStages; ++stage) prefetch(block.rows, i, stage);
      add(block.rows[i]);
    }
    if (!block.error.empty())
      fail_at(block.error_line, block.error + (block.time_error ? first_times() : ""));
    if (block.records > 0) {
      fewest_fields_ =
          report_.rows == 0 ? block.fewest_fields : std::min(fewest_fields_, block.fewest_fields);
      most_fields_ = std::max(most_fields_, block.most_fields);
    }
    report_.lines += block.lines;
    report_.blank_lines += block.blank_lines;
    report_.rows += block.records;
    report_.below_min_rating += block.below_min_rating;
    report_.other_events += block.other_events;
  }

  Interactions finish() {
    check(report_.rows > 0, "{} is empty: {}", text_.name(),
          layout_.header ? "a header and no rows" : "no rows");
    check(log_.size() > 0, "{}: none of the {} rows was selected by min_rating and events", text_.name(),
          with_commas(report_.rows));
    if (!layout_.table()) finish_plain_text();
    finish_encoding();
    return log_.group();
  }

 private:
  // The two look-ups of a row take most of the time of reading; done early they cost half (measured with
  // 200,000 users and 100,000 items).
  [[gnu::always_inline]] inline void prefetch(const std::vector<Row>& rows, size_t current, int stage) const {
    const size_t ahead = current + kDistance * static_cast<size_t>(kStages - stage);
    if (ahead >= rows.size()) return;
    log_.users.prefetch(rows[ahead].user_hash, stage);
    log_.items.prefetch(rows[ahead].item_hash, stage);
  }

  void add(const Row& row) {
    if (row.first) {
      const int64_t known = log_.users.size();
      user_ = static_cast<int32_t>(log_.users.add(row.user, row.user_hash));
      report_.continued_lines += user_ < known;
    }
    const auto item = static_cast<int32_t>(log_.items.add(row.item, row.item_hash));
    ++report_.interactions;
    if (!row.kept) return;
    if (layout_.time < 0)
      log_.add(user_, item);
    else if (!log_.add(user_, item, row.time))
      fail_at(
          row.line,
          fmt::format(": {} has {} decimals, and other timestamps have so many digits that both do not fit "
                      "into 64 bits together; round the column",
                      report_.time, std::max(row.time.decimals, log_.decimals())));
  }

  // `line` counts from 0 within the current block.
  [[noreturn]] void fail_at(int64_t line, const std::string& message) const {
    fail("{} line {}{}", text_.name(), with_commas(report_.lines + line + 1), message);
  }

  std::string first_times() const {
    std::string list;
    for (const int64_t time : log_.first_times(2)) list += time_text(time, log_.decimals()) + ", ";
    return list.empty() ? "" : " (first rows: " + list + "...)";
  }

  void settle_encoding(const ParsedBlock& block) {
    if (block.encoding == SeenEncoding::kAscii || !block.error.empty()) return;
    if (encoding_ == SeenEncoding::kAscii) {
      encoding_ = block.encoding;
      if (block.bad_line >= 0) report_.first_bad_line = report_.lines + block.bad_line + 1;
    }
    if (encoding_ != block.encoding)
      fail_at(std::max<int64_t>(block.bad_line, 0),
              ": the text is UTF-8 in one place and not in another; give --encoding "
              "latin1 if the file is ISO-8859-1");
  }

  void finish_encoding() {
    if (encoding_ != SeenEncoding::kLatin1) return;
    report_.encoding = "Latin-1";
    if (guess_encoding_) warn_latin1(text_.name(), report_.first_bad_line);
  }

  void finish_plain_text() {
    const bool repeats = report_.continued_lines > 0;
    if (automatic_ && repeats && fewest_fields_ == most_fields_ && most_fields_ > 2)
      fail(
          "{}: every line has {} fields and users return on later lines, so this looks like a table without "
          "header; "
          "give --no-header --separator space and --columns, or --format sequences if the fields are items",
          text_.name(), most_fields_);
    report_.format = most_fields_ == 2 && repeats ? "pairs" : "sequences";
  }

  const TextBlocks& text_;
  const Layout& layout_;
  bool automatic_, guess_encoding_;
  ReadReport& report_;
  LogBuilder log_;
  int32_t user_ = -1;
  int64_t fewest_fields_ = 0, most_fields_ = 0;
  SeenEncoding encoding_ = SeenEncoding::kAscii;
};

void describe(const TextBlocks& text, const Layout& layout, ReadReport& report) {
  const auto column = [&](int position) {
    return position < 0 ? "" : layout.columns[static_cast<size_t>(position)];
  };
  report.file = text.name();
  report.format = enum_name(layout.format);
  report.separator = separator_name(layout.separator);
  report.gzip = text.gzip();
  report.header = layout.header;
  // ASCII is UTF-8; consume() learns of Latin-1.
  report.encoding = text.utf16() ? "UTF-16" : text.byte_order_mark() ? "UTF-8 with byte order mark" : "UTF-8";
  report.columns = layout.columns;
  report.user = column(layout.user);
  report.item = column(layout.item);
  report.time = column(layout.time);
  report.rating = column(layout.rating);
  report.event = column(layout.event);
  if (layout.header) report.title = column(recognised_column(layout.columns, Role::kTitle));
}

// Parses blocks in parallel while `reader` takes them in file order.
void read_blocks(TextBlocks& text, const Layout& layout, const DataConfig& config, LogReader& reader) {
  const auto workers = static_cast<size_t>(std::max(1, omp_get_max_threads()));
  std::deque<std::future<ParsedBlock>> parsing;
  Progress progress("reading", 0, "rows");
  std::string block;
  bool first = true, more = true;
  while (more || !parsing.empty()) {
    while (more && parsing.size() < workers && (more = text.next(block))) {
      parsing.push_back(std::async(std::launch::async, parse_block, std::move(block), std::cref(layout),
                                   std::cref(config), std::exchange(first, false)));
    }
    if (parsing.empty()) break;
    const ParsedBlock parsed = parsing.front().get();
    parsing.pop_front();
    reader.consume(parsed);
    progress.advance(parsed.records, fmt::format("{:.0f} % of the file", 100 * text.consumed()));
  }
}

}  // namespace

Interactions read_interactions(const DataConfig& config, ReadReport& report) {
  if (config.file.empty()) usage_error("no interactions file given (--file)");
  report = {};
  TextBlocks text(config.file, config.encoding);
  const Layout layout = find_layout(text.head(), text.name(), config);
  describe(text, layout, report);
  if (!config.titles.empty()) report.title = "";  // they come from there
  if (layout.quoting) text.set_quoting(layout.separator);
  LogReader reader(text, layout, config, report);
  read_blocks(text, layout, config, reader);
  Interactions log = reader.finish();
  sort_by_time(log, config.ties, report);
  handle_duplicates(log, config.duplicates, report);
  filter_log(log, config.min_user, config.min_item, report);
  check(log.size() > 0, "{}: nothing is left of {} interactions after min_user = {} and min_item = {}",
        text.name(), with_commas(report.before.interactions), config.min_user, config.min_item);
  return log;
}

}  // namespace prism
