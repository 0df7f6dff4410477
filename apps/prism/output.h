#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "prism/core/files.h"

namespace prism::cli {

/// Where a command's result goes: the standard output, a file that appears whole with commit(), or a device
/// or pipe.
class Output {
 public:
  /// "" or "-": the standard output.
  explicit Output(const std::string& path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void write(std::string_view text);
  /// Throws Error when the text could not be written.
  void commit();

 private:
  const char* name() const { return stream_ == stdout ? "the standard output" : "the output"; }

  std::unique_ptr<AtomicFile> file_;
  std::FILE* stream_ = stdout;
};

}  // namespace prism::cli
