#pragma once
#include <cstddef>
#include <string_view>

namespace prism {

/// What the bytes at the start of a text are.
enum class Utf8 { kValid, kIncomplete, kInvalid };

/// The character at the start of `text` (not empty) and its length in bytes. kIncomplete: the text ends
/// before the character does. kInvalid: length is that of the ill-formed part, at least 1 (Unicode's "maximal
/// subparts").
struct Utf8Character {
  Utf8 kind;
  size_t length;
};
Utf8Character first_character(std::string_view text);

/// Length of the longest prefix that is whole, valid UTF-8.
size_t valid_prefix(std::string_view text);

/// Calls valid(run) for runs of valid UTF-8 and other(bytes) for what lies between, in order.
template <class Valid, class Other>
void for_each_run(std::string_view text, Valid valid, Other other) {
  while (!text.empty()) {
    if (const size_t length = valid_prefix(text)) {
      valid(text.substr(0, length));
      text.remove_prefix(length);
      continue;
    }
    const size_t length = first_character(text).length;
    other(text.substr(0, length));
    text.remove_prefix(length);
  }
}

}  // namespace prism
