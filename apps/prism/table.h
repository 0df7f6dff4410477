#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace prism::cli {

/// Nothing, text, a count or a figure.
using Cell = std::variant<std::monostate, std::string, int64_t, double>;

enum class TableFormat { kText, kCsv, kJson, kMarkdown };

/// Rows under named columns, printed as aligned text, CSV, Markdown or a JSON array of objects. NaN and
/// nothing are "-" in text and Markdown, empty in CSV and null in JSON; bytes that are not UTF-8 never reach
/// the JSON.
class Table {
 public:
  /// `decimals` of figures in text.
  explicit Table(std::vector<std::string> columns, int decimals = 6);

  /// One cell a column.
  void add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }

  /// Text: a head, a rule, the rows; figures to the right, text to the left. Ends with a line break.
  std::string to_string(TableFormat format) const;

 private:
  std::string text() const;
  std::string csv() const;
  std::string json() const;
  std::string markdown() const;

  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
  int decimals_;
};

/// Columns that a terminal needs for UTF-8 text, every character one wide.
size_t display_width(std::string_view text);

}  // namespace prism::cli
