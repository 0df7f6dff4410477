#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct z_stream_s;

namespace prism {

/// The bytes of a file, inflated when it starts with gzip's magic number. Throws Error for a folder, a
/// missing file, another archive format, and for compressed data that is damaged or ends too early.
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Up to `count` bytes; 0 only at the end of the file.
  size_t read(char* out, size_t count);
  bool gzip() const { return inflater_ != nullptr; }
  /// Share of the file's own bytes consumed so far, in [0, 1].
  double consumed() const;

 private:
  size_t read_raw(char* out, size_t count);
  size_t read_inflated(char* out, size_t count);
  void begin_member();
  bool refill();

  std::string name_;
  int descriptor_ = -1;
  int64_t size_ = 0, position_ = 0;
  std::string input_;  ///< compressed bytes, or the first bytes of a plain file
  size_t input_begin_ = 0;
  std::unique_ptr<z_stream_s> inflater_;
  bool in_member_ = false;
};

}  // namespace prism
