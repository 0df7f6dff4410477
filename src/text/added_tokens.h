#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace prism {

/// Tokens that are found in the text itself before anything else looks at it: "<|endoftext|>".
class AddedTokens {
 public:
  void add(const std::string& content, int32_t id);

  /// The leftmost token, of several at one place the longest, again and again: text between tokens goes to
  /// `text` (never empty), ids of tokens to `token`.
  void split(std::string_view whole, const std::function<void(std::string_view)>& text,
             const std::function<void(int32_t)>& token) const;

 private:
  struct Entry {
    std::string content;
    int32_t id;
  };
  const Entry* at(std::string_view rest) const;

  std::array<std::vector<Entry>, 256> by_first_byte_;  // longest first
  bool any_ = false;
};

}  // namespace prism
