#include "text/utf8.h"

#include <algorithm>

namespace prism {
namespace {

/// Length of a character by its first byte, and the range of its second byte (Unicode 15, table 3-7); length
/// 0 for bytes that start none.
struct Lead {
  size_t length;
  unsigned char low, high;
};

Lead lead_of(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first >= 0xC2 && first <= 0xDF) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first >= 0xE1 && first <= 0xEF) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first >= 0xF1 && first <= 0xF3) return {4, 0x80, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Utf8::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8::kIncomplete, i};
    const unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8::kInvalid, i};
  }
  return {Utf8::kValid, lead.length};
}

size_t valid_prefix(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    if (static_cast<unsigned char>(text[length]) < 0x80) {
      ++length;
      continue;
    }
    const Utf8Character next = first_character(text.substr(length, 4));
    if (next.kind != Utf8::kValid) break;
    length += next.length;
  }
  return length;
}

}  // namespace prism
