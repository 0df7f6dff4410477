#include "train/append_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "prism/core/error.h"

namespace prism {

AppendFile::AppendFile(std::filesystem::path path, int64_t keep) : path_(std::move(path)) {
  std::error_code error;
  const auto present = std::filesystem::file_size(path_, error);
  if (!error && static_cast<int64_t>(present) > keep)
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(keep), error);
  else
    error.clear();
  file_ = error ? nullptr : std::fopen(path_.c_str(), "ab");
  if (!file_) fail("cannot append to {}: {}", path_.string(), error ? error.message() : std::strerror(errno));
  size_ = static_cast<int64_t>(std::filesystem::file_size(path_));
}

AppendFile::~AppendFile() { std::fclose(file_); }

void AppendFile::append(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size() || std::fflush(file_) != 0)
    fail("cannot append to {}: {}", path_.string(), std::strerror(errno));
  size_ += static_cast<int64_t>(bytes.size());
}

void AppendFile::sync() { ::fsync(::fileno(file_)); }

}  // namespace prism
