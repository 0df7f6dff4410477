#include "layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "column_names.h"
#include "prism/core/error.h"
#include "prism/core/text.h"
#include "text_blocks.h"
#include "timestamp.h"

namespace prism {
namespace {

constexpr size_t kSampleRecords = 20;
const std::array<std::string, 5> kSeparators{"\t", "::", ",", ";", "|"};

struct Record {
  std::string_view text;
  int64_t line;
};

// The first whole records with content.
std::vector<Record> sample(std::string_view head, bool quoting) {
  std::vector<Record> records;
  int64_t line = 1;
  for (size_t begin = 0; begin < head.size() && records.size() < kSampleRecords;) {
    const size_t end = record_end(head, begin, quoting);
    std::string_view text = head.substr(begin, end - begin);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (!is_blank(text)) records.push_back({text, line});
    line += 1 + std::count(text.begin(), text.end(), '\n');
    begin = end + 1;
  }
  if (records.size() > 1 && head.size() >= (size_t{1} << 16))
    records.pop_back();  // perhaps cut by the sample's end
  return records;
}

std::string typed_name(const std::string& field) {
  const size_t colon = field.rfind(':');
  if (colon == field.npos) return "";
  const std::string type = field.substr(colon + 1);
  const bool known = type == "token" || type == "float" || type == "token_seq" || type == "float_seq";
  return known ? field.substr(0, colon) : "";
}

bool is_typed_header(const std::vector<std::string>& fields) {
  return std::all_of(fields.begin(), fields.end(),
                     [](const auto& field) { return !typed_name(field).empty(); });
}

bool has_number(const std::vector<std::string>& fields) {
  return std::any_of(fields.begin(), fields.end(), [](const auto& field) {
    Decimal number;
    return parse_decimal(field, number) != NumberError::kNotANumber;
  });
}

std::string given_separator(const std::string& name) {
  if (name == "tab" || name == "\\t") return "\t";
  if (name == "space" || name == " ") return " ";
  if (name == "comma") return ",";
  if (name == "semicolon") return ";";
  check(!name.empty() && name.find_first_of("\"\r\n") == name.npos,
        "--separator \"{}\" cannot separate fields; give auto, tab, space or the characters themselves",
        shortened(name));
  return name;
}

// The separator that occurs equally often in the first records, most often where there are several; " " when
// there is none. Tabs and "::" hardly occur within fields, so they win.
std::string detect_separator(const std::vector<Record>& records) {
  std::string best = " ";
  size_t best_fields = 1;
  for (const std::string& separator : kSeparators) {
    const size_t fields = split_record(records.front().text, separator, true).size();
    const bool even = std::all_of(records.begin(), records.end(), [&](const Record& record) {
      return split_record(record.text, separator, true).size() == fields;
    });
    if (even && fields > best_fields) best_fields = fields, best = separator;
    if (best == "\t" || best == "::") return best;
  }
  if (best != " ") return best;
  // Ragged lines: the header's own separator, so that the parser can name the odd line.
  for (const std::string& separator : kSeparators) {
    const auto fields = split_record(records.front().text, separator, true);
    if (fields.size() > best_fields) best_fields = fields.size(), best = separator;
  }
  return best;
}

bool names_user_and_item(const std::vector<std::string>& fields, const DataConfig& config) {
  const auto has = [&](const std::string& name, Role role) {
    return name.empty() ? recognised_column(fields, role) >= 0
                        : std::find(fields.begin(), fields.end(), name) != fields.end();
  };
  return has(config.user_column, Role::kUser) && has(config.item_column, Role::kItem);
}

std::string header_text(const Record& record) { return shortened(record.text, 80); }

[[noreturn]] void fail_no_header(const Record& record, const std::string& file,
                                 const std::string& separator) {
  fail(
      "{} line {}: \"{}\" looks like data, not like a header ({}-separated); for a file without header use "
      "--no-header, "
      "with --columns user,item,timestamp or whatever its columns are",
      file, with_commas(record.line), header_text(record), separator_name(separator));
}

// Default meaning of the columns of a table without header.
std::vector<std::string> default_columns(size_t count, const Record& record, const std::string& file) {
  switch (count) {
    case 2:
      return {"user", "item"};
    case 3:
      return {"user", "item", "timestamp"};
    case 4:
      return {"user", "item", "rating", "timestamp"};
    default:
      fail(
          "{} line {}: {} columns without header; name them with --columns user,item,... (any other name for "
          "a column "
          "to skip)",
          file, with_commas(record.line), count);
  }
}

void choose(Layout& layout, Role role, const std::string& name, const std::string& option,
            const std::string& where) {
  layout.position(role) = name.empty() ? recognised_column(layout.columns, role)
                                       : named_column(layout.columns, name, option, where);
}

void require_column(int position, const char* what, const Layout& layout, const std::string& where) {
  check(position >= 0,
        "{}: no {} column among \"{}\" ({}-separated); name it with --{}-column, or give --separator if the "
        "columns are wrong",
        where, what, shortened(fmt::format("{}", fmt::join(layout.columns, " ")), 200),
        separator_name(layout.separator), what);
}

void choose_log_columns(Layout& layout, const DataConfig& config, const std::string& where) {
  choose(layout, Role::kUser, config.user_column, "--user-column", where);
  choose(layout, Role::kItem, config.item_column, "--item-column", where);
  if (config.time_column != "none") choose(layout, Role::kTime, config.time_column, "--time-column", where);
  choose(layout, Role::kRating, config.rating_column, "--rating-column", where);
  choose(layout, Role::kEvent, config.event_column, "--event-column", where);
  require_column(layout.user, "user", layout, where);
  require_column(layout.item, "item", layout, where);
  check(layout.user != layout.item, "{}: column \"{}\" cannot be both user and item", where,
        layout.columns[static_cast<size_t>(layout.user)]);
  if (config.min_rating > DataConfig{}.min_rating) require_column(layout.rating, "rating", layout, where);
  if (!config.events.empty()) require_column(layout.event, "event", layout, where);
}

// Names the columns of a table from its header, --columns or, without both, their number.
void name_columns(Layout& layout, const Record& first, const std::string& file, const DataConfig& config) {
  const std::vector<std::string> fields = split_record(first.text, layout.separator, layout.quoting);
  layout.header_line = layout.header ? first.line : 0;
  if (!config.columns.empty()) {
    check(config.columns.size() == fields.size(), "{} line {}: {} columns ({}), but --columns names {}", file,
          with_commas(first.line), fields.size(), header_text(first), config.columns.size());
    layout.columns = config.columns;
  } else if (layout.header) {
    layout.columns = fields;
    if (is_typed_header(fields))
      std::transform(fields.begin(), fields.end(), layout.columns.begin(), typed_name);
  } else {
    layout.columns = default_columns(fields.size(), first, file);
  }
}

std::string header_place(const Layout& layout, const std::string& file) {
  return layout.header ? fmt::format("{} line {}", file, with_commas(layout.header_line)) : file;
}

// Whether the first record is a header; errors when it cannot be and nothing was said.
bool find_header(const Record& first, const std::string& file, const DataConfig& config,
                 const std::string& separator) {
  if (!config.header) return false;
  const std::vector<std::string> fields = split_record(first.text, separator, true);
  if (is_typed_header(fields) || names_user_and_item(fields, config)) return true;
  if (has_number(fields)) fail_no_header(first, file, separator);
  return true;  // names that are not known; choosing the columns says which
}

// Tables with tabs or blanks and without header may be plain text.
bool is_plain_text(const std::vector<Record>& records, const std::string& separator,
                   const DataConfig& config) {
  if (!config.header || !config.columns.empty()) return false;
  const std::vector<std::string> first = split_record(records.front().text, separator, true);
  if (is_typed_header(first) || names_user_and_item(first, config)) return false;
  if (separator == " ") return true;
  if (separator != "\t") return false;
  const bool even = std::all_of(records.begin(), records.end(), [&](const Record& record) {
    return split_record(record.text, separator, true).size() == first.size();
  });
  return first.size() == 2 ? has_number(first) : !even;
}

void check_no_nul(std::string_view head, const std::string& file) {
  if (const size_t nul = head.find('\0'); nul != head.npos)
    fail("{} line {}{}", file, with_commas(line_at(head, nul) + 1), kNulMessage);
}

Layout plain_layout(LogFormat format) {
  Layout layout;
  layout.format = format;
  layout.separator = " ";
  layout.quoting = false;
  return layout;
}

}  // namespace

int& Layout::position(Role role) {
  switch (role) {
    case Role::kUser:
      return user;
    case Role::kItem:
      return item;
    case Role::kTime:
      return time;
    case Role::kRating:
      return rating;
    case Role::kEvent:
      return event;
    default:
      return title;
  }
}

size_t record_end(std::string_view text, size_t begin, bool quoting) {
  const size_t newline = std::min(text.find('\n', begin), text.size());
  if (!quoting) return newline;
  bool inside = false;
  for (size_t i = begin; i < text.size(); ++i) {
    if (inside) {
      if (text[i] != '"') continue;
      if (text.substr(i).starts_with("\"\""))
        ++i;
      else
        inside = false;
    } else if (text[i] == '"') {
      inside = i == begin || std::string_view(",\t;|:").find(text[i - 1]) != std::string_view::npos;
    } else if (text[i] == '\n') {
      return i;
    }
  }
  return inside ? newline : text.size();
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

std::string separator_name(const std::string& separator) {
  if (separator == "\t") return "tab";
  if (separator == " ") return "blank";
  if (separator == ",") return "comma";
  if (separator == ";") return "semicolon";
  return "\"" + separator + "\"";
}

std::vector<std::string> split_record(std::string_view record, const std::string& separator, bool quoting) {
  std::vector<std::string> fields;
  if (record.ends_with('\r')) record.remove_suffix(1);
  if (separator == " ") {
    for (size_t i = 0; (i = record.find_first_not_of(" \t", i)) != record.npos;) {
      const size_t end = std::min(record.find_first_of(" \t", i), record.size());
      fields.emplace_back(record.substr(i, end - i));
      i = end;
    }
    return fields;
  }
  for (size_t i = 0;;) {
    std::string field;
    if (quoting && i < record.size() && record[i] == '"') {
      for (++i; i < record.size() && (record[i] != '"' || record.substr(i).starts_with("\"\"")); ++i) {
        field += record[i];
        i += record[i] == '"';
      }
      i = std::min(i + 1, record.size());
    }
    const size_t end = std::min(record.find(separator, i), record.size());
    fields.push_back(field.append(record.substr(i, end - i)));
    if (end == record.size()) return fields;
    i = end + separator.size();
  }
}

Layout find_layout(std::string_view head, const std::string& file, const DataConfig& config) {
  check_no_nul(head, file);
  check(head.find('\n') != head.npos || head.find('\r') == head.npos || head.find('\r') + 1 == head.size(),
        "{}: lines end in CR alone (old Mac style); convert them to LF first", file);
  if (config.format == LogFormat::kPairs || config.format == LogFormat::kSequences)
    return plain_layout(config.format);
  Layout layout;
  layout.format = config.format;
  const bool inter_name = file.ends_with(".inter") || file.ends_with(".inter.gz");
  std::vector<Record> records = sample(head, !inter_name && config.format != LogFormat::kInter);
  check(!records.empty(), "{} is empty: no line with content", file);
  if (config.format == LogFormat::kInter || (config.format == LogFormat::kAuto && inter_name)) {
    layout.format = LogFormat::kInter;
    layout.separator = "\t";
    layout.quoting = false;
    check(is_typed_header(split_record(records.front().text, "\t", false)),
          "{} line {}: \"{}\" is not the header of an .inter file; expected tab-separated name:type, e.g. "
          "user_id:token "
          "item_id:token timestamp:float (another table is read with --format csv)",
          file, with_commas(records.front().line), header_text(records.front()));
    layout.header = true;
  } else {
    layout.separator =
        config.separator == "auto" ? detect_separator(records) : given_separator(config.separator);
    if (config.format == LogFormat::kAuto && config.separator == "auto" &&
        is_plain_text(records, layout.separator, config))
      return plain_layout(LogFormat::kSequences);
    layout.format = LogFormat::kCsv;
    layout.quoting = layout.separator != " ";
    layout.header = find_header(records.front(), file, config, layout.separator);
  }
  name_columns(layout, records.front(), file, config);
  choose_log_columns(layout, config, header_place(layout, file));
  return layout;
}

Layout find_title_layout(std::string_view head, const std::string& file, const DataConfig& config) {
  check_no_nul(head, file);
  const std::vector<Record> records = sample(head, true);
  check(!records.empty(), "{} is empty: no line with content", file);
  Layout layout;
  layout.separator = detect_separator(records);
  const std::vector<std::string> fields = split_record(records.front().text, layout.separator, true);
  check(fields.size() >= 2, "{} line {}: \"{}\" has no separator; expected an item and its title", file,
        with_commas(records.front().line), header_text(records.front()));
  layout.columns = fields;
  const bool typed = is_typed_header(fields);
  if (typed) std::transform(fields.begin(), fields.end(), layout.columns.begin(), typed_name);
  layout.quoting = !typed && layout.separator != "::";
  layout.item = config.item_column.empty() ? recognised_column(layout.columns, Role::kItem) : -1;
  if (!config.item_column.empty()) {
    const auto found = std::find(layout.columns.begin(), layout.columns.end(), config.item_column);
    layout.item = found == layout.columns.end() ? recognised_column(layout.columns, Role::kItem)
                                                : static_cast<int>(found - layout.columns.begin());
  }
  layout.title = recognised_column(layout.columns, Role::kTitle);
  layout.header = layout.item >= 0 && layout.title >= 0;
  if (!layout.header) {
    check(has_number(fields) || layout.separator == "::", "{} line {}: no item and title column among \"{}\"",
          file, with_commas(records.front().line), header_text(records.front()));
    layout.item = 0, layout.title = 1;
  }
  layout.header_line = layout.header ? records.front().line : 0;
  return layout;
}

}  // namespace prism
