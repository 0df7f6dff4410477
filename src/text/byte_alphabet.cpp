#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>
#include <map>

#include "text/utf8.h"

namespace prism {
namespace {

bool prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

std::string encoded(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

struct Alphabet {
  std::array<std::string, 256> character;
  std::map<std::string, char, std::less<>> byte;
  Alphabet() {
    uint32_t next = 0x100;
    for (int i = 0; i < 256; ++i) {
      const auto place = static_cast<size_t>(i);
      character[place] = encoded(prints(i) ? static_cast<uint32_t>(i) : next++);
      byte[character[place]] = static_cast<char>(i);
    }
  }
  static const Alphabet& get() {
    static const Alphabet alphabet;
    return alphabet;
  }
};

}  // namespace

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += Alphabet::get().character[static_cast<unsigned char>(byte)];
  return text;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, first_character(text).length);
    const auto found = Alphabet::get().byte.find(character);
    if (found == Alphabet::get().byte.end()) return std::nullopt;
    bytes += found->second;
    text.remove_prefix(character.size());
  }
  return bytes;
}

}  // namespace prism
