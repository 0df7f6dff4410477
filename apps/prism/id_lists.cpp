#include "id_lists.h"

#include <algorithm>

#include "prism/core/files.h"

namespace prism::cli {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

}  // namespace

std::vector<std::string> split_history(std::string line) {
  if (line.ends_with('\r')) line.pop_back();
  return split(line, line.find('\t') == std::string::npos ? ' ' : '\t');
}

std::vector<std::string> split_ids(const std::string& text) {
  if (!text.starts_with('@')) return split(text, ',');
  std::vector<std::string> ids = split(read_file(text.substr(1)), '\n');
  for (std::string& id : ids)
    if (id.ends_with('\r')) id.pop_back();
  std::erase(ids, "");
  return ids;
}

}  // namespace prism::cli
