#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "prism/data/data_config.h"
#include "prism/data/interactions.h"

namespace prism {

/// Sizes of a log at one point.
struct LogSize {
  int64_t users = 0, items = 0, interactions = 0;
};

/// What was detected and counted while a log was read.
struct ReadReport {
  std::string file, format, separator, encoding;  ///< "csv", "tab", "UTF-8"
  bool gzip = false, header = false;
  std::vector<std::string> columns;             ///< all column names of a table; "" for one without a name
  std::string user, item, time, rating, event;  ///< names of the columns used; "" for none
  std::string title;                            ///< a column of titles, which is not read from a log

  int64_t lines = 0;                               ///< all lines of the file
  int64_t blank_lines = 0;                         ///< lines without content, skipped
  int64_t rows = 0;                                ///< table rows, or lines of plain text
  int64_t interactions = 0;                        ///< before any selection
  int64_t below_min_rating = 0, other_events = 0;  ///< rows not selected
  int64_t exact_duplicates = 0;  ///< rows equal to an earlier one in user, item and timestamp
  bool duplicates_dropped = false;
  int64_t unsorted_users = 0;  ///< users whose rows were not in time order
  int64_t tied_pairs = 0;      ///< neighbours in a user's history with equal timestamps
  int64_t negative_times = 0;
  int64_t continued_lines =
      0;  ///< plain text: lines whose user had an earlier one; items are joined in line order
  int64_t first_bad_line = 0;  ///< first line that was not UTF-8; 0: none
  LogSize before, after;       ///< around min_user and min_item
  int64_t filter_rounds = 0;   ///< rounds that removed something

  /// Sentences for the user, the main one first.
  std::vector<std::string> text() const;
};

/// Reads, selects, orders and filters a log. Memory while reading: at most 28 bytes an interaction, the
/// vocabularies and a few blocks of text. Errors name the file, line, column, the text found and what was
/// expected. Warnings: one a kind.
Interactions read_interactions(const DataConfig& config, ReadReport& report);

}  // namespace prism
