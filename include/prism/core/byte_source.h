#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace prism {

class Decompressor;

/// The bytes of a file, unpacked when it starts with the magic number of gzip or zstd. Throws Error for a
/// folder, a missing file, another archive format, and for compressed data that is damaged or ends too early.
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Up to `count` bytes; 0 only at the end of the file.
  size_t read(char* out, size_t count);
  /// Whether the file is packed by gzip.
  bool gzip() const { return gzip_; }
  /// Share of the file's own bytes consumed so far, in [0, 1].
  double consumed() const;

 private:
  size_t read_raw(char* out, size_t count);
  size_t read_unpacked(char* out, size_t count);
  bool refill();

  std::string name_;
  int descriptor_ = -1;
  int64_t size_ = 0, position_ = 0;
  std::string input_;  ///< compressed bytes, or the first bytes of a plain file
  size_t input_begin_ = 0;
  bool gzip_ = false;
  std::unique_ptr<Decompressor> decompressor_;
};

}  // namespace prism
