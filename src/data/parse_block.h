#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout.h"
#include "prism/data/data_config.h"
#include "text_blocks.h"
#include "timestamp.h"

namespace prism {

/// One interaction of a block; the ids are views into ParsedBlock::text.
struct Row {
  std::string_view user, item;
  uint32_t user_hash, item_hash;
  Decimal time;
  uint32_t line;      ///< within the block, from 0
  bool first = true;  ///< the first of its line
  bool kept = true;   ///< selected by rating and event
};

/// A block of text and what it holds. `error` is "" or the message after "<file> line <n>".
struct ParsedBlock {
  std::string text;
  std::vector<Row> rows;
  int64_t lines = 0, blank_lines = 0, records = 0, below_min_rating = 0, other_events = 0;
  int64_t fewest_fields = 0, most_fields = 0;  ///< of plain text lines
  SeenEncoding encoding = SeenEncoding::kAscii;
  int64_t bad_line = -1;  ///< first line that was not UTF-8
  std::string error;
  int64_t error_line = 0;
  bool time_error = false;  ///< not a number: examples of good timestamps help
};

/// Parses whole records. Touches nothing but its arguments, so blocks can be parsed in parallel.
ParsedBlock parse_block(std::string text, const Layout& layout, const DataConfig& config, bool first_block);

}  // namespace prism
