#include "prism/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryMark = ".tmp-";

[[noreturn]] void fail_with_errno(const char* action, const fs::path& path) {
  fail("cannot {} {}: {}", action, path.string(), std::strerror(errno));
}

void flush_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return;  // some file systems do not open folders; the rename itself has happened
  ::fsync(descriptor);
  ::close(descriptor);
}

/// The file that a link stands for, so that replacing it leaves the link.
fs::path link_target(fs::path path) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);
  if (!error && fs::is_symlink(path, error)) path = std::move(target);
  return path;
}

void keep_permissions(const fs::path& from, std::FILE* file) {
  std::error_code error;
  const fs::file_status status = fs::status(from, error);
  if (!error && fs::exists(status))
    ::fchmod(::fileno(file), static_cast<mode_t>(status.permissions()) & 07777);
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(link_target(std::move(path))) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  check(!fs::exists(status) || fs::is_regular_file(status), "cannot write {}: it is not a regular file",
        path_.string());
  temporary_ = path_;
  temporary_ += std::string(kTemporaryMark) + std::to_string(::getpid());
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (!file_) fail_with_errno("write", path_);
  keep_permissions(path_, file_);
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  std::fclose(file_);
  std::error_code ignored;
  fs::remove(temporary_, ignored);
}

void AtomicFile::write(const void* bytes, size_t count) {
  if (count > 0 && std::fwrite(bytes, 1, count, file_) != count) fail_with_errno("write", path_);
}

void AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail_with_errno("write", path_);
  std::FILE* file = std::exchange(file_, nullptr);
  const bool closed = std::fclose(file) == 0;
  if (!closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    errno = reason;
    fail_with_errno("write", path_);
  }
  flush_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void remove_abandoned_files(const fs::path& folder) {
  const auto is_temporary = [](const std::string& name) {
    const size_t mark = name.rfind(kTemporaryMark);
    return mark != name.npos && mark + kTemporaryMark.size() < name.size() &&
           name.find_first_not_of("0123456789", mark + kTemporaryMark.size()) == name.npos;
  };
  std::vector<fs::path> abandoned;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && is_temporary(entry.path().filename().string())) abandoned.push_back(entry);
  std::error_code ignored;
  for (const fs::path& path : abandoned) fs::remove(path, ignored);
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string read_file(const fs::path& path) {
  if (fs::is_directory(path)) fail("cannot read {}: it is a folder", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_with_errno("read", path);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) fail_with_errno("read", path);
  return content;
}

void require_writable_folder(const fs::path& folder, int64_t bytes_needed) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("cannot create folder {}: {}", folder.string(), error.message());
  const fs::path probe = folder / (".writable-" + std::to_string(::getpid()));
  write_file(probe, "x");
  fs::remove(probe, error);
  const fs::space_info space = fs::space(folder, error);
  if (!error && static_cast<int64_t>(space.available) < bytes_needed)
    fail("folder {} has {} free, {} are needed", folder.string(),
         format_bytes(static_cast<int64_t>(space.available)), format_bytes(bytes_needed));
}

uint32_t crc32_of(const void* bytes, size_t count, uint32_t crc) {
  if (count == 0) return crc;  // zlib answers a null pointer with the initial value, whatever the crc so far
  return static_cast<uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(bytes), count));
}

}  // namespace prism
