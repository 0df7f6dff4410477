#pragma once
#include <string>
#include <vector>

namespace prism {

/// Holds back the end of a growing text while it could become the beginning of a stop text.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// What of the text so far can be shown now; after a stop text nothing more comes.
  std::string push(const std::string& more);
  /// What was held back, when no more text comes.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  size_t held() const;

  std::vector<std::string> texts_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace prism
