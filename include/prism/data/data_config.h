#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "prism/core/config.h"

namespace prism {

enum class LogFormat { kAuto, kInter, kCsv, kPairs, kSequences };
enum class Encoding { kAuto, kUtf8, kLatin1, kUtf16 };
enum class TieRule { kFile, kItem };
enum class DuplicateRule { kKeep, kDropExact };
enum class SplitRule { kLeaveOneOut, kTime };

template <>
struct EnumNames<LogFormat> {
  static constexpr std::array names{"auto", "inter", "csv", "pairs", "sequences"};
};
template <>
struct EnumNames<Encoding> {
  static constexpr std::array names{"auto", "utf8", "latin1", "utf16"};
};
template <>
struct EnumNames<TieRule> {
  static constexpr std::array names{"file", "item"};
};
template <>
struct EnumNames<DuplicateRule> {
  static constexpr std::array names{"keep", "drop_exact"};
};
template <>
struct EnumNames<SplitRule> {
  static constexpr std::array names{"leave_one_out", "time"};
};

/// Section "data" of a recipe: which file, how to read it, which rows to keep, how to split them.
struct DataConfig {
  std::string file;
  LogFormat format = LogFormat::kAuto;
  bool header = true;
  std::string separator = "auto";
  Encoding encoding = Encoding::kAuto;
  std::vector<std::string> columns;
  std::string user_column, item_column, time_column, rating_column, event_column;
  std::string time_format;
  double min_rating = -1e9;
  std::vector<std::string> events;
  int64_t min_user = 1, min_item = 1;
  TieRule ties = TieRule::kFile;
  DuplicateRule duplicates = DuplicateRule::kKeep;
  std::string titles, titles_map;
  std::string item_features, item_feature_ids;
  SplitRule split = SplitRule::kLeaveOneOut;
  double valid_fraction = 0.1, test_fraction = 0.1;
  std::string valid_time, test_time;

  static constexpr auto fields = std::tuple{
      Field{"file", &DataConfig::file, Any{}, "",
            "interactions: .inter, CSV/TSV or plain text, also gzipped"},
      Field{"format", &DataConfig::format, Any{}, "",
            "inter: RecBole with typed header; csv: a table; pairs: \"user item\" lines; sequences: "
            "\"user item item ...\" lines; auto looks at the file"},
      Field{"header", &DataConfig::header, Any{}, "", "the first line of a table names its columns"},
      Field{"separator", &DataConfig::separator, Any{}, "",
            "auto, tab, space, or the separator itself such as \",\" or \"::\""},
      Field{"encoding", &DataConfig::encoding, Any{}, "",
            "of the text files; auto: byte order mark, else UTF-8, else Latin-1 with a warning"},
      Field{"columns", &DataConfig::columns, Any{}, "",
            "names of all columns in order, for a table without header or with another one"},
      Field{"user_column", &DataConfig::user_column, Any{}, "", "name of the user column; empty: recognised"},
      Field{"item_column", &DataConfig::item_column, Any{}, "", "name of the item column; empty: recognised"},
      Field{"time_column", &DataConfig::time_column, Any{}, "",
            "name of the time column; empty: recognised; none: keep the order of the file"},
      Field{"rating_column", &DataConfig::rating_column, Any{}, "",
            "name of the rating column; empty: recognised"},
      Field{"event_column", &DataConfig::event_column, Any{}, "",
            "name of the event column; empty: recognised"},
      Field{"time_format", &DataConfig::time_format, Any{}, "",
            "empty: timestamps are numbers; iso: 2021-05-13T10:00:00Z; else a strptime format (UTC)"},
      Field{"min_rating", &DataConfig::min_rating, Range{-1e9, 1e9}, "", "drop rows with a lower rating"},
      Field{"events", &DataConfig::events, Any{}, "", "keep only rows with one of these event types"},
      Field{"min_user", &DataConfig::min_user, Range{1, 1e9}, "interactions",
            "drop users with fewer, together with min_item until nothing changes"},
      Field{"min_item", &DataConfig::min_item, Range{1, 1e9}, "interactions",
            "drop items with fewer, together with min_user until nothing changes"},
      Field{"ties", &DataConfig::ties, Any{}, "",
            "order of a user's equal timestamps: that of the file or of item ids"},
      Field{"duplicates", &DataConfig::duplicates, Any{}, "",
            "rows with equal user, item and timestamp: keep all or drop_exact to keep the first"},
      Field{"titles", &DataConfig::titles, Any{}, "",
            "item titles: .item, movies.dat with \"::\", CSV or TSV; empty: X.item beside X.inter if it "
            "exists; none"},
      Field{"titles_map", &DataConfig::titles_map, Any{}, "",
            "lines \"item title_id\" where the titles file has other item ids"},
      Field{"item_features", &DataConfig::item_features, Any{}, "",
            "vectors of items, e.g. of their texts: a .npy matrix or the tensor \"features\" of a "
            ".safetensors"},
      Field{"item_feature_ids", &DataConfig::item_feature_ids, Any{}, "",
            "file with the item id of each row of item_features, one a line"},
      Field{"split", &DataConfig::split, Any{}, "",
            "leave_one_out: last item tests, second last validates; time: the same two cuts in time for all "
            "users"},
      Field{"valid_fraction", &DataConfig::valid_fraction, Range{0, 0.5}, "",
            "split = time: share of the interactions between the two cuts"},
      Field{"test_fraction", &DataConfig::test_fraction, Range{0, 0.5}, "",
            "split = time: share of the interactions after the second cut"},
      Field{"valid_time", &DataConfig::valid_time, Any{}, "",
            "split = time: first timestamp of the validation part, instead of valid_fraction"},
      Field{"test_time", &DataConfig::test_time, Any{}, "",
            "split = time: first timestamp of the test part, instead of test_fraction"}};
};

}  // namespace prism
