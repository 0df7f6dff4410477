#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prism/data/data_config.h"
#include "prism/data/vocabulary.h"

namespace prism {

/// Titles of items, for people.
class Titles {
 public:
  /// "" for an item without a title, and where no file was read.
  std::string_view of(int64_t item) const {
    if (titles_.empty()) return {};
    return titles_[static_cast<size_t>(row_of_item_[static_cast<size_t>(item)])];
  }
  bool empty() const { return titles_.empty(); }
  /// Items with a title.
  int64_t known() const;
  const std::string& file() const { return file_; }

 private:
  friend Titles read_titles(const DataConfig& config, const Vocabulary& items);
  std::string file_;
  std::vector<std::string> titles_;   ///< UTF-8
  std::vector<int32_t> row_of_item_;  ///< [items]
};

/// Reads the titles file of the configuration (empty Titles when there is none) for the given items. A file
/// that is not UTF-8 is taken for Latin-1, with one warning that names it and its first bad line. Throws
/// Error for a file that is no table of items and titles.
Titles read_titles(const DataConfig& config, const Vocabulary& items);

}  // namespace prism
