#include "parse_block.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

#include "prism/core/text.h"
#include "prism/data/vocabulary.h"

namespace prism {
namespace {

// Stops a block; the message becomes ParsedBlock::error.
struct BadRecord {
  std::string message;
  bool time = false;
};

class Parser {
 public:
  Parser(ParsedBlock& block, const Layout& layout, const DataConfig& config, bool skip_header)
      : block_(block),
        layout_(layout),
        config_(config),
        skip_header_(skip_header),
        next_(block.text.data()),
        end_(next_ + block.text.size()) {}

  void run() {
    while (next_ < end_) {
      record_line_ = block_.lines;
      if (skip_blank_line()) continue;
      if (!layout_.table())
        plain_record();
      else if (table_record(); skip_header_)
        skip_header_ = false;
      else
        add_row();
    }
  }
  int64_t record_line() const { return record_line_; }

 private:
  bool skip_blank_line() {
    char* p = next_;
    while (p < end_ && (*p == ' ' || *p == '\t' || *p == '\r')) ++p;
    if (p < end_ && *p != '\n') return false;
    next_ = p < end_ ? p + 1 : p;
    ++block_.lines;
    ++block_.blank_lines;
    return true;
  }

  // Splits one record into fields_ and moves behind it.
  void table_record() {
    fields_.clear();
    if (layout_.separator == " ") {
      split_blanks(take_line());
    } else {
      while (table_field()) {
      }
      ++block_.lines;
    }
    if (fields_.size() != layout_.columns.size()) fail_field_count();
  }

  // One field; true when another follows.
  bool table_field() {
    if (layout_.quoting && next_ < end_ && *next_ == '"') return quoted_field();
    const char* begin = next_;
    const char separator = layout_.separator.front();
    while (next_ < end_ && *next_ != '\n' && (*next_ != separator || !at_separator())) ++next_;
    return end_field({begin, static_cast<size_t>(next_ - begin)});
  }

  bool at_separator() const {
    const std::string& separator = layout_.separator;
    return separator.size() == 1 ||
           std::string_view(next_, static_cast<size_t>(end_ - next_)).starts_with(separator);
  }

  // `next_` stands on the separator, the line break or the end that follows `field`.
  bool end_field(std::string_view field) {
    const bool more = next_ < end_ && *next_ != '\n';
    if (!more && field.ends_with('\r')) field.remove_suffix(1);
    fields_.push_back(field);
    if (next_ < end_) next_ += more ? layout_.separator.size() : 1;
    return more;
  }

  // Removes the quotes in place.
  bool quoted_field() {
    char* out = next_;
    const char* begin = out;
    for (++next_;; ++next_) {
      if (next_ == end_) throw BadRecord{": a quoted field that starts here is never closed"};
      if (*next_ == '"') {
        ++next_;
        if (next_ == end_ || *next_ != '"') break;
      }
      block_.lines += *next_ == '\n';
      *out++ = *next_;
    }
    const std::string_view field(begin, static_cast<size_t>(out - begin));
    if (next_ < end_ && *next_ == '\r' && (next_ + 1 == end_ || next_[1] == '\n')) ++next_;
    if (next_ < end_ && *next_ != '\n' && !(*next_ == layout_.separator.front() && at_separator()))
      throw BadRecord{
          fmt::format(": text after the closing quote of \"{}\"; expected {} or the end of the line (a quote "
                      "inside a quoted field is doubled)",
                      shortened(field), separator_name(layout_.separator))};
    return end_field(field);
  }

  std::string_view take_line() {
    const char* begin = next_;
    const void* found = std::memchr(next_, '\n', static_cast<size_t>(end_ - next_));
    const char* stop = found ? static_cast<const char*>(found) : end_;
    next_ += stop - begin + (found ? 1 : 0);
    ++block_.lines;
    return {begin, static_cast<size_t>(stop - begin)};
  }

  void split_blanks(std::string_view line) {
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    for (size_t i = 0; i < line.size();) {
      while (i < line.size() && blank(line[i])) ++i;
      const size_t begin = i;
      while (i < line.size() && !blank(line[i])) ++i;
      if (i > begin) fields_.push_back(line.substr(begin, i - begin));
    }
  }

  [[noreturn]] void fail_field_count() const {
    const std::string found = shortened(fmt::format("{}", fmt::join(fields_, layout_.separator)));
    throw BadRecord{fmt::format(": {} {} (\"{}\"), expected {} ({}-separated: {})", fields_.size(),
                                fields_.size() == 1 ? "field" : "fields", found, layout_.columns.size(),
                                separator_name(layout_.separator),
                                shortened(fmt::format("{}", fmt::join(layout_.columns, " ")), 100))};
  }

  std::string_view field(int position) const { return fields_[static_cast<size_t>(position)]; }
  const std::string& column(int position) const { return layout_.columns[static_cast<size_t>(position)]; }

  std::string_view id(int position) const {
    const std::string_view text = field(position);
    if (is_blank(text)) throw BadRecord{fmt::format(": {} is empty; expected an id", column(position))};
    return text;
  }

  void add_row() {
    ++block_.records;
    Row row{.user = id(layout_.user),
            .item = id(layout_.item),
            .user_hash = 0,
            .item_hash = 0,
            .time = {},
            .line = 0};
    row.kept = selected();
    if (layout_.time >= 0) row.time = parse_time(field(layout_.time));
    push(row);
  }

  void push(Row row) {
    row.user_hash = row.first ? hash_name(row.user) : block_.rows.back().user_hash;
    row.item_hash = hash_name(row.item);
    row.line = static_cast<uint32_t>(record_line_);
    block_.rows.push_back(row);
  }

  bool selected() {
    if (!config_.events.empty() && std::find(config_.events.begin(), config_.events.end(),
                                             field(layout_.event)) == config_.events.end()) {
      ++block_.other_events;
      return false;
    }
    if (config_.min_rating <= DataConfig{}.min_rating) return true;
    std::string_view text = field(layout_.rating);
    while (text.starts_with(' ')) text.remove_prefix(1);
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    double rating = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rating);
    if (error != std::errc{} || !is_blank({stop, static_cast<size_t>(text.data() + text.size() - stop)}))
      throw BadRecord{fmt::format(": {} \"{}\" is not a number", column(layout_.rating),
                                  shortened(field(layout_.rating)))};
    const bool enough = rating >= config_.min_rating;
    block_.below_min_rating += !enough;
    return enough;
  }

  Decimal parse_time(std::string_view text) const {
    Decimal time;
    const std::string& format = config_.time_format;
    if (!format.empty()) {
      if (!(format == "iso" ? parse_iso_date(text, time) : parse_date(text, format, time)))
        throw BadRecord{fmt::format(": {} \"{}\" does not match --time-format {}", column(layout_.time),
                                    shortened(text), format)};
      return time;
    }
    switch (parse_decimal(text, time)) {
      case NumberError::kNone:
        return time;
      case NumberError::kTooLarge:
        throw BadRecord{
            fmt::format(": {} \"{}\" does not fit into 64 bits", column(layout_.time), shortened(text))};
      case NumberError::kNotANumber:
        break;
    }
    const char* format_for_it = parse_iso_date(text, time) ? "dates need --time-format iso"
                                                           : "dates need --time-format, such as %d.%m.%Y";
    throw BadRecord{
        fmt::format(": {} \"{}\" is not a number; {}", column(layout_.time), shortened(text), format_for_it),
        true};
  }

  void plain_record() {
    fields_.clear();
    split_blanks(take_line());
    const auto count = static_cast<int64_t>(fields_.size());
    if (count < 2 || (layout_.format == LogFormat::kPairs && count > 2))
      throw BadRecord{fmt::format(": {} {} (\"{}\"), expected \"user item\"{} separated by blanks", count,
                                  count == 1 ? "field" : "fields",
                                  shortened(fmt::format("{}", fmt::join(fields_, " "))),
                                  layout_.format == LogFormat::kPairs ? "" : " or \"user item item ...\"")};
    block_.fewest_fields = block_.records == 0 ? count : std::min(block_.fewest_fields, count);
    block_.most_fields = std::max(block_.most_fields, count);
    ++block_.records;
    for (size_t i = 1; i < fields_.size(); ++i)
      push({.user = fields_[0],
            .item = fields_[i],
            .user_hash = 0,
            .item_hash = 0,
            .time = {},
            .line = 0,
            .first = i == 1});
  }

  ParsedBlock& block_;
  const Layout& layout_;
  const DataConfig& config_;
  bool skip_header_;
  char* next_;
  char* end_;
  int64_t record_line_ = 0;
  std::vector<std::string_view> fields_;
};

// Refuses NUL bytes and settles the encoding; false when the block has an error.
bool prepare(ParsedBlock& block, const DataConfig& config) {
  if (const size_t nul = block.text.find('\0'); nul != block.text.npos) {
    block.error_line = line_at(block.text, nul);
    block.error = kNulMessage;
    return false;
  }
  const Settled settled = settle_encoding(block.text, config.encoding);
  block.encoding = settled.encoding;
  block.bad_line = settled.bad_line;
  if (settled.encoding != SeenEncoding::kUtf8 || settled.bad_line < 0) return true;
  block.error_line = block.bad_line;
  block.error = not_utf8_message(settled.bad_byte);
  return false;
}

}  // namespace

ParsedBlock parse_block(std::string text, const Layout& layout, const DataConfig& config, bool first_block) {
  ParsedBlock block;
  block.text = std::move(text);
  if (!prepare(block, config)) return block;
  Parser parser(block, layout, config, first_block && layout.header);
  try {
    parser.run();
  } catch (const BadRecord& bad) {
    block.error = bad.message;
    block.error_line = parser.record_line();
    block.time_error = bad.time;
  }
  return block;
}

}  // namespace prism
