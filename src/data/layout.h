#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prism/data/data_config.h"

namespace prism {

/// What a column is used for.
enum class Role { kUser, kItem, kTime, kRating, kEvent, kTitle };

/// How the lines of a text file become fields.
struct Layout {
  LogFormat format = LogFormat::kCsv;  ///< never kAuto
  std::string separator = ",";         ///< " " also means runs of blanks
  bool quoting = true;
  bool header = false;
  int64_t header_line = 0;           ///< its line number; 0 without header
  std::vector<std::string> columns;  ///< of a table; typed headers lose their type
  int user = -1, item = -1, time = -1, rating = -1, event = -1, title = -1;  ///< positions; -1: absent

  bool table() const { return format == LogFormat::kInter || format == LogFormat::kCsv; }
  int& position(Role role);
};

/// Finds format, separator, header and columns of an interaction log from its beginning. Errors name `file`
/// and the option that settles what cannot be seen.
Layout find_layout(std::string_view head, const std::string& file, const DataConfig& config);

/// The same for a table of item titles, of which the item and title columns are used. Without header
/// (movies.dat) they are the first two.
Layout find_title_layout(std::string_view head, const std::string& file, const DataConfig& config);

/// "tab", "blank", "comma" or the separator in quotes; for messages.
std::string separator_name(const std::string& separator);

/// Splits one record; removes quotes where `quoting`, and the CR of a CR LF line end.
std::vector<std::string> split_record(std::string_view record, const std::string& separator, bool quoting);

/// End of the record at `begin`, without its line break. With `quoting`, line breaks between quotes belong to
/// it.
size_t record_end(std::string_view text, size_t begin, bool quoting);

/// True for a line of blanks only.
bool is_blank(std::string_view line);

}  // namespace prism
