#include "train/append_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "prism/core/error.h"
#include "prism/core/log.h"

namespace prism {

AppendFile::AppendFile(std::filesystem::path path, int64_t keep) : path_(std::move(path)) {
  std::error_code error;
  const auto present = std::filesystem::file_size(path_, error);
  if (!error && static_cast<int64_t>(present) > keep)
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(keep), error);
  else
    error.clear();
  if (const auto found = static_cast<int64_t>(std::filesystem::exists(path_) ? present : 0); found < keep)
    warn("{}: {} of the {} bytes that the checkpoint remembers are there; the missing rows are lost",
         path_.string(), found, keep);
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
