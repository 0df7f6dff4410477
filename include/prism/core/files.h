#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace prism {

/// A file that appears whole or not at all: bytes go to `<path>.tmp-<pid>`; commit() flushes to the disk and
/// renames. Without commit() the temporary file is removed. A link's target is replaced, not the link; an
/// existing file's permissions stay. Every failure, also a path that is no regular file, throws Error with
/// the path and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::FILE* file_ = nullptr;
};

/// Removes what AtomicFiles of killed processes left in `folder` and below. The caller is the only writer.
void remove_abandoned_files(const std::filesystem::path& folder);

/// Writes the whole file atomically.
void write_file(const std::filesystem::path& path, std::string_view content);

/// The whole file; Error when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Creates `folder` (and parents) if needed and proves that files can be written there with `bytes_needed`
/// free. Error names the folder and the reason.
void require_writable_folder(const std::filesystem::path& folder, int64_t bytes_needed = 0);

/// CRC-32 (zlib's polynomial) of bytes, continuing from `crc`.
uint32_t crc32_of(const void* bytes, size_t count, uint32_t crc = 0);

}  // namespace prism
