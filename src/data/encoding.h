#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prism {

/// What the bytes of a text can be.
struct TextScan {
  size_t bad = std::string_view::npos;  ///< offset of the first byte that is not UTF-8
  size_t bad_count = 0;                 ///< such bytes
  size_t multibyte = 0;                 ///< valid characters of two bytes and more
};
TextScan scan_utf8(std::string_view text);

/// Every byte of ISO-8859-1 as UTF-8.
std::string latin1_to_utf8(std::string_view text);

/// Turns UTF-16 bytes that arrive in pieces into UTF-8; unpaired surrogates become U+FFFD and are counted.
class Utf16Decoder {
 public:
  explicit Utf16Decoder(bool big_endian) : big_endian_(big_endian) {}
  void append(std::string_view bytes, std::string& out);
  /// True when a character was cut by the end of the file.
  bool unfinished() const { return has_byte_ || high_ != 0; }
  /// Unpaired surrogates so far.
  int64_t unpaired() const { return unpaired_; }

 private:
  void append_unit(unsigned unit, std::string& out);
  void append_unpaired(std::string& out);

  bool big_endian_, has_byte_ = false;
  unsigned byte_ = 0, high_ = 0;
  int64_t unpaired_ = 0;
};

}  // namespace prism
