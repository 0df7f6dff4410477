#include "prism/data/titles.h"

#include <algorithm>
#include <filesystem>

#include "layout.h"
#include "prism/core/error.h"
#include "prism/core/text.h"
#include "text_blocks.h"

namespace prism {
namespace {

// The file to read; "" for none.
std::string titles_file(const DataConfig& config) {
  if (config.titles == "none") return "";
  if (!config.titles.empty()) return config.titles;
  std::filesystem::path beside = config.file;
  if (beside.extension() == ".gz") beside.replace_extension();
  if (beside.extension() != ".inter") return "";
  beside.replace_extension(".item");
  return std::filesystem::exists(beside) ? beside.string() : "";
}

// A whole small text file as UTF-8.
std::string read_text(const std::string& file, Encoding encoding) {
  TextBlocks blocks(file, encoding);
  std::string text, block;
  while (blocks.next(block)) text += block;
  const Settled settled = settle_encoding(text, encoding);
  if (settled.encoding == SeenEncoding::kUtf8 && settled.bad_line >= 0)
    fail("{} line {}{}", file, with_commas(settled.bad_line + 1), not_utf8_message(settled.bad_byte));
  if (settled.encoding == SeenEncoding::kLatin1 && encoding == Encoding::kAuto)
    warn_latin1(file, settled.bad_line + 1);
  return text;
}

// Calls take(fields, line) for every record with content.
template <class Take>
void each_record(std::string_view text, const std::string& separator, bool quoting, Take take) {
  int64_t line = 1;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = record_end(text, begin, quoting);
    const std::string_view record = text.substr(begin, end - begin);
    if (!is_blank(record)) take(split_record(record, separator, quoting), line);
    line += 1 + std::count(record.begin(), record.end(), '\n');
    begin = end + 1;
  }
}

// The ids under which the titles file knows the items, and for each item which of them.
struct TitleIds {
  Vocabulary ids;
  std::vector<int32_t> of_item;  // -1: none
};

TitleIds own_ids(const Vocabulary& items) {
  TitleIds own;
  for (int64_t item = 0; item < items.size(); ++item)
    own.of_item.push_back(static_cast<int32_t>(own.ids.add(items.name(item))));
  return own;
}

TitleIds mapped_ids(const DataConfig& config, const Vocabulary& items) {
  TitleIds mapped;
  mapped.of_item.assign(static_cast<size_t>(items.size()), -1);
  each_record(read_text(config.titles_map, config.encoding), " ", false,
              [&](const auto& fields, int64_t line) {
                check(fields.size() == 2, "{} line {}: {} fields, expected \"item title_id\"",
                      config.titles_map, with_commas(line), fields.size());
                const int64_t item = items.find(fields[0]);
                if (item >= 0)
                  mapped.of_item[static_cast<size_t>(item)] = static_cast<int32_t>(mapped.ids.add(fields[1]));
              });
  return mapped;
}

}  // namespace

int64_t Titles::known() const {
  return std::count_if(row_of_item_.begin(), row_of_item_.end(),
                       [&](int32_t row) { return !titles_[static_cast<size_t>(row)].empty(); });
}

Titles read_titles(const DataConfig& config, const Vocabulary& items) {
  Titles titles;
  titles.file_ = titles_file(config);
  if (titles.file_.empty()) return titles;
  const TitleIds ids = config.titles_map.empty() ? own_ids(items) : mapped_ids(config, items);
  const std::string text = read_text(titles.file_, config.encoding);
  const Layout layout = find_title_layout(text, titles.file_, config);
  titles.titles_.resize(static_cast<size_t>(ids.ids.size()) + 1);  // the last one is "": no title
  titles.row_of_item_ = ids.of_item;
  std::replace(titles.row_of_item_.begin(), titles.row_of_item_.end(), -1,
               static_cast<int32_t>(ids.ids.size()));
  const auto last = static_cast<size_t>(std::max(layout.item, layout.title));
  each_record(text, layout.separator, layout.quoting, [&](const auto& fields, int64_t line) {
    if (line == layout.header_line) return;
    check(fields.size() > last, "{} line {}: {} {}-separated fields, expected at least {}", titles.file_,
          with_commas(line), fields.size(), separator_name(layout.separator), last + 1);
    const int64_t row = ids.ids.find(fields[static_cast<size_t>(layout.item)]);
    if (row >= 0 && titles.titles_[static_cast<size_t>(row)].empty())
      titles.titles_[static_cast<size_t>(row)] = fields[static_cast<size_t>(layout.title)];
  });
  return titles;
}

}  // namespace prism
