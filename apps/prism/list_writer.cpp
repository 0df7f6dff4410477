#include "list_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "table.h"

namespace prism::cli {
namespace {

constexpr size_t kFlushBytes = 1 << 16;

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

void append_json(std::string& text, std::string_view user, std::span<const ListItem> items, bool titles,
                 bool by_popularity, std::span<const std::string> unknown, std::string_view note) {
  const auto out = std::back_inserter(text);
  text += "{";
  if (!user.empty()) fmt::format_to(out, "\"user\":{},", json_text(user));
  text += "\"recommendations\":[";
  for (size_t i = 0; i < items.size(); ++i) {
    fmt::format_to(out, "{}{{\"rank\":{},\"item\":{},\"score\":{}", i ? "," : "", i + 1,
                   json_text(items[i].id), nlohmann::json(items[i].score).dump());
    if (titles) fmt::format_to(out, ",\"title\":{}", json_text(items[i].title));
    text += "}";
  }
  fmt::format_to(out, "],\"by_popularity\":{},\"unknown_items\":[", by_popularity);
  for (size_t i = 0; i < unknown.size(); ++i)
    fmt::format_to(out, "{}{}", i ? "," : "", json_text(unknown[i]));
  fmt::format_to(out, "],\"note\":{}}}\n", json_text(note));
}

}  // namespace

void ListWriter::add(std::string_view user, const Recommendations& list) {
  std::vector<ListItem> items;
  for (const RecommendedItem& item : list.items) items.push_back({item.id, item.title, item.score});
  add(user, items, list.by_popularity, list.unknown, list.note);
}

void ListWriter::add(std::string_view user, std::span<const ListItem> items, bool by_popularity) {
  add(user, items, by_popularity, {}, "");
}

void ListWriter::add(std::string_view user, std::span<const ListItem> items, bool by_popularity,
                     std::span<const std::string> unknown, std::string_view note) {
  if (format_ == ListFormat::kJson)
    append_json(text_, user, items, titles_, by_popularity, unknown, note);
  else if (format_ == ListFormat::kCsv)
    add_csv(user, items);
  else
    add_table(user, items);
  started_ = true;
  flush(kFlushBytes);
}

void ListWriter::add_csv(std::string_view user, std::span<const ListItem> items) {
  if (!started_) text_ += titles_ ? "user,rank,item,score,title\n" : "user,rank,item,score\n";
  for (size_t i = 0; i < items.size(); ++i) {
    fmt::format_to(std::back_inserter(text_), "{},{},{},{}", csv_text(user), i + 1, csv_text(items[i].id),
                   items[i].score);
    if (titles_) text_ += "," + csv_text(items[i].title);
    text_ += '\n';
  }
}

void ListWriter::add_table(std::string_view user, std::span<const ListItem> items) {
  if (!user.empty())
    fmt::format_to(std::back_inserter(text_), "{}{} {}\n", started_ ? "\n" : "", named_, user);
  if (items.empty()) return;
  std::vector<std::string> columns = {"rank", "item", "score"};
  if (titles_) columns.emplace_back("title");
  Table table(columns, 4);
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<Cell> row = {static_cast<int64_t>(i + 1), std::string(items[i].id), double{items[i].score}};
    if (titles_) row.emplace_back(std::string(items[i].title));
    table.add(std::move(row));
  }
  text_ += table.to_string(TableFormat::kText);
}

void ListWriter::finish() {
  if (!started_ && format_ == ListFormat::kCsv) add_csv("", {});
  flush(0);
}

void ListWriter::flush(size_t limit) {
  if (text_.size() <= limit) return;
  output_.write(text_);
  text_.clear();
}

}  // namespace prism::cli
