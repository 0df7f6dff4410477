#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism::cli {
namespace {

bool is_none(const Cell& cell) {
  const auto* figure = std::get_if<double>(&cell);
  return std::holds_alternative<std::monostate>(cell) || (figure && std::isnan(*figure));
}

std::string cell_text(const Cell& cell, int decimals) {
  if (is_none(cell)) return "-";
  if (const auto* text = std::get_if<std::string>(&cell)) return shortened(*text, 200);
  if (const auto* count = std::get_if<int64_t>(&cell)) return with_commas(*count);
  return fmt::format("{:.{}f}", std::get<double>(cell), decimals);
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of("\",\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string csv_cell(const Cell& cell) {
  if (is_none(cell)) return "";
  if (const auto* text = std::get_if<std::string>(&cell)) return csv_field(*text);
  if (const auto* count = std::get_if<int64_t>(&cell)) return std::to_string(*count);
  return fmt::format("{}", std::get<double>(cell));
}

nlohmann::ordered_json json_cell(const Cell& cell) {
  if (is_none(cell)) return nullptr;
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* count = std::get_if<int64_t>(&cell)) return *count;
  return std::get<double>(cell);
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string gap(width - std::min(width, display_width(text)), ' ');
  return right ? gap + text : text + gap;
}

std::string joined(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                   const std::vector<bool>& right) {
  std::string line;
  for (size_t c = 0; c < cells.size(); ++c)
    line += (c > 0 ? "  " : "") + padded(cells[c], widths[c], right[c]);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

size_t display_width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

Table::Table(std::vector<std::string> columns, int decimals)
    : columns_(std::move(columns)), decimals_(decimals) {}

void Table::add(std::vector<Cell> row) {
  check(row.size() == columns_.size(), "table: {} cells for {} columns", row.size(), columns_.size());
  rows_.push_back(std::move(row));
}

std::string Table::to_string(TableFormat format) const {
  switch (format) {
    case TableFormat::kCsv:
      return csv();
    case TableFormat::kJson:
      return json();
    case TableFormat::kMarkdown:
      return markdown();
    case TableFormat::kText:
      break;
  }
  return text();
}

std::string Table::text() const {
  std::vector<std::vector<std::string>> lines{columns_};
  std::vector<bool> right(columns_.size());
  for (const auto& row : rows_) {
    auto& line = lines.emplace_back();
    for (size_t c = 0; c < row.size(); ++c) {
      line.push_back(cell_text(row[c], decimals_));
      right[c] =
          right[c] || std::holds_alternative<int64_t>(row[c]) || std::holds_alternative<double>(row[c]);
    }
  }
  std::vector<size_t> widths(columns_.size());
  for (const auto& line : lines)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], display_width(line[c]));
  std::vector<std::string> rule;
  rule.reserve(widths.size());
  for (const size_t width : widths) rule.emplace_back(width, '-');
  lines.insert(lines.begin() + 1, rule);
  std::string out;
  for (const auto& line : lines) out += joined(line, widths, right);
  return out;
}

std::string Table::csv() const {
  std::string out;
  for (size_t c = 0; c < columns_.size(); ++c) out += (c > 0 ? "," : "") + csv_field(columns_[c]);
  out += '\n';
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) out += (c > 0 ? "," : "") + csv_cell(row[c]);
    out += '\n';
  }
  return out;
}

std::string Table::json() const {
  auto all = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (size_t c = 0; c < row.size(); ++c) object[columns_[c]] = json_cell(row[c]);
    all.push_back(std::move(object));
  }
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string Table::markdown() const {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) {
      text += ' ';
      for (const char c : cell) text += c == '|' ? std::string("\\|") : std::string(1, c);
      text += " |";
    }
    return text + '\n';
  };
  std::string out = line(columns_) + '|';
  for (size_t c = 0; c < columns_.size(); ++c) out += "---|";
  out += '\n';
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    cells.reserve(row.size());
    for (const Cell& cell : row) cells.push_back(cell_text(cell, decimals_));
    out += line(cells);
  }
  return out;
}

}  // namespace prism::cli
