#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>

namespace prism {

/// A log that only grows. A checkpoint remembers its size; a resumed run cuts it back to that size, so that
/// what was written after the checkpoint does not appear twice.
class AppendFile {
 public:
  /// Opens or creates `path` and cuts it to `keep` bytes (a shorter file stays as it is).
  AppendFile(std::filesystem::path path, int64_t keep);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Appends and hands the bytes to the system, so that a killed program loses none.
  void append(std::string_view bytes);
  /// Waits until the bytes are on the disk.
  void sync();
  int64_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace prism
