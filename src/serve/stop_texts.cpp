#include "serve/stop_texts.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace prism {

std::string StopTexts::push(const std::string& more) {
  if (stopped_) return "";
  pending_ += more;
  size_t first = std::string::npos;
  for (const std::string& text : texts_)
    if (!text.empty()) first = std::min(first, pending_.find(text));
  stopped_ = first != std::string::npos;
  const size_t shown = stopped_ ? first : pending_.size() - held();
  std::string out = pending_.substr(0, shown);
  pending_.erase(0, shown);
  if (stopped_) pending_.clear();
  return out;
}

/// Length of the longest end of the pending text that begins a stop text.
size_t StopTexts::held() const {
  size_t longest = 0;
  for (const std::string& text : texts_)
    for (size_t length = std::min(text.size(), pending_.size()); length > longest; --length)
      if (std::string_view(pending_).ends_with(std::string_view(text).substr(0, length))) longest = length;
  return longest;
}

std::string StopTexts::finish() { return std::exchange(pending_, ""); }

}  // namespace prism
