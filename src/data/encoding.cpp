#include "encoding.h"

#include <cstdint>
#include <cstring>

namespace prism {
namespace {

constexpr unsigned kReplacement = 0xFFFD;

bool is_ascii(const char* bytes) {
  uint64_t words[4];
  std::memcpy(words, bytes, sizeof words);
  return ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080U) == 0;
}

// Length of the valid UTF-8 character at `text`, 0 when it is not one (RFC 3629, table 3-7 of Unicode).
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF)
    return continues(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && continues(2) ? 3 : 0;
  if (lead >= 0xF0 && lead <= 0xF4)
    return continues(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && continues(2) &&
                   continues(3)
               ? 4
               : 0;
  return 0;
}

void append_utf8(unsigned code, std::string& out) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6)), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3F)), put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

TextScan scan_utf8(std::string_view text) {
  TextScan scan;
  for (size_t i = 0; i < text.size();) {
    if (i + 32 <= text.size() && is_ascii(text.data() + i)) {
      i += 32;
      continue;
    }
    const size_t length = character_length(text.substr(i));
    if (length == 0 && scan.bad_count++ == 0) scan.bad = i;
    scan.multibyte += length > 1;
    i += length == 0 ? 1 : length;
  }
  return scan;
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const char c : text) append_utf8(static_cast<unsigned char>(c), out);
  return out;
}

void Utf16Decoder::append(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const unsigned byte = static_cast<unsigned char>(c);
    if (has_byte_) append_unit(big_endian_ ? byte_ << 8 | byte : byte << 8 | byte_, out);
    has_byte_ = !has_byte_;
    byte_ = byte;
  }
}

void Utf16Decoder::append_unit(unsigned unit, std::string& out) {
  const bool low = unit >= 0xDC00 && unit <= 0xDFFF;
  if (high_ != 0) {
    if (low)
      append_utf8(0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00), out);
    else
      append_unpaired(out);
    high_ = 0;
    if (low) return;
  }
  if (unit >= 0xD800 && unit <= 0xDBFF)
    high_ = unit;
  else if (low)
    append_unpaired(out);
  else
    append_utf8(unit, out);
}

void Utf16Decoder::append_unpaired(std::string& out) {
  append_utf8(kReplacement, out);
  ++unpaired_;
}

}  // namespace prism
