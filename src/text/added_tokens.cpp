#include "text/added_tokens.h"

#include <algorithm>

namespace prism {

void AddedTokens::add(const std::string& content, int32_t id) {
  if (content.empty()) return;
  auto& entries = by_first_byte_[static_cast<unsigned char>(content[0])];
  const auto place = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.content.size() < content.size(); });
  entries.insert(place, {content, id});
  any_ = true;
}

const AddedTokens::Entry* AddedTokens::at(std::string_view rest) const {
  for (const Entry& entry : by_first_byte_[static_cast<unsigned char>(rest[0])])
    if (rest.starts_with(entry.content)) return &entry;
  return nullptr;
}

void AddedTokens::split(std::string_view whole, const std::function<void(std::string_view)>& text,
                        const std::function<void(int32_t)>& token) const {
  size_t begin = 0;
  for (size_t i = 0; any_ && i < whole.size();) {
    const Entry* entry = at(whole.substr(i));
    if (!entry) {
      ++i;
      continue;
    }
    if (i > begin) text(whole.substr(begin, i - begin));
    token(entry->id);
    begin = i += entry->content.size();
  }
  if (begin < whole.size()) text(whole.substr(begin));
}

}  // namespace prism
