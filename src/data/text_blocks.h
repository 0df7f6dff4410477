#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "encoding.h"
#include "prism/core/byte_source.h"
#include "prism/data/data_config.h"

namespace prism {

/// A text file in blocks of whole records: gzip inflated, byte order marks dropped, UTF-16 decoded. Bytes
/// that are not UTF-8 are the consumer's business (settle_encoding).
class TextBlocks {
 public:
  TextBlocks(const std::filesystem::path& path, Encoding encoding);

  /// The text from the beginning, at least `kHeadBytes` and a whole line of it when the file is longer.
  /// Before any next().
  const std::string& head() const { return pending_; }
  /// With quoting, a line break inside a quoted field of `separator` does not end a record.
  void set_quoting(const std::string& separator) { quoting_ = separator; }
  /// The next block, about `kBlockBytes` long; it ends with a record. False at the end.
  bool next(std::string& block);

  const std::string& name() const { return name_; }
  bool gzip() const { return source_.gzip(); }
  bool utf16() const { return utf16_.has_value(); }
  bool byte_order_mark() const { return mark_; }
  double consumed() const { return source_.consumed(); }

  static constexpr size_t kHeadBytes = size_t{1} << 16, kBlockBytes = size_t{1} << 21;

 private:
  void drop_mark(Encoding encoding);
  void read_more(size_t bytes);
  size_t whole_records() const;

  std::string name_;
  ByteSource source_;
  std::string pending_;
  std::optional<std::string> quoting_;
  std::optional<Utf16Decoder> utf16_;
  bool mark_ = false, at_end_ = false;
};

/// The encoding of a file as far as its blocks have shown it.
enum class SeenEncoding { kAscii, kUtf8, kLatin1 };

struct Settled {
  SeenEncoding encoding = SeenEncoding::kAscii;
  int64_t bad_line = -1;  ///< first line with a byte that is not UTF-8, from 0; -1: none
  unsigned bad_byte = 0;
};

/// Number of line breaks before `offset`.
int64_t line_at(std::string_view text, size_t offset);

/// Converts `text` to UTF-8 where needed. kUtf8 together with a bad_line is an error for the caller to
/// report: a mixture of UTF-8 and other bytes, or any other bytes under Encoding::kUtf8.
Settled settle_encoding(std::string& text, Encoding encoding);

/// The warning that a file without byte order mark was taken for Latin-1. `line` counts from 1.
void warn_latin1(const std::string& file, int64_t line);

/// The messages, after "<file> line <n>", for a NUL byte and for a byte that is not UTF-8.
inline constexpr std::string_view kNulMessage =
    ": NUL byte; probably a binary or damaged file, or UTF-16 without byte order mark (--encoding utf16)";
std::string not_utf8_message(unsigned byte);

}  // namespace prism
