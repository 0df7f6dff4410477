#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "output.h"
#include "prism/serve/recommender_service.h"

namespace prism::cli {

enum class ListFormat { kTable, kCsv, kJson };

/// One item of a list.
struct ListItem {
  std::string_view id, title;
  float score;
};

/// Lists of recommendations as text: an aligned table, CSV with a header, or one JSON object a line
/// {"user", "recommendations": [{"rank", "item", "score", "title"}], "by_popularity", "unknown_items",
/// "note"}.
class ListWriter {
 public:
  /// `titles`: whether there is a title column. `named`: what the names of lists are, for tables ("user",
  /// "line").
  ListWriter(Output& output, ListFormat format, bool titles, std::string named)
      : output_(output), format_(format), titles_(titles), named_(std::move(named)) {}

  /// `user` names the list; "" for one without a name.
  void add(std::string_view user, const Recommendations& list);
  /// The same for a user of a batch; only JSON tells by_popularity.
  void add(std::string_view user, std::span<const ListItem> items, bool by_popularity);
  /// Writes what is left.
  void finish();

 private:
  void add(std::string_view user, std::span<const ListItem> items, bool by_popularity,
           std::span<const std::string> unknown, std::string_view note);
  void add_table(std::string_view user, std::span<const ListItem> items);
  void add_csv(std::string_view user, std::span<const ListItem> items);
  void flush(size_t limit);

  Output& output_;
  ListFormat format_;
  bool titles_, started_ = false;
  std::string named_;
  std::string text_;
};

}  // namespace prism::cli
