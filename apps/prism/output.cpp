#include "output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "prism/core/error.h"

namespace prism::cli {

Output::Output(const std::string& path) {
  if (path.empty() || path == "-") return;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    file_ = std::make_unique<AtomicFile>(path);
    return;
  }
  stream_ = std::fopen(path.c_str(), "wb");  // a device or a pipe: nothing to replace
  check(stream_ != nullptr, "cannot write {}: {}", path, std::strerror(errno));
}

Output::~Output() {
  if (stream_ != stdout) std::fclose(stream_);
}

void Output::write(std::string_view text) {
  if (file_)
    file_->write(text);
  else
    check(std::fwrite(text.data(), 1, text.size(), stream_) == text.size(), "cannot write to {}", name());
}

void Output::commit() {
  if (file_)
    file_->commit();
  else
    check(std::fflush(stream_) == 0, "cannot write to {}", name());
}

}  // namespace prism::cli
