#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "prism/core/files.h"

namespace prism::cli {

/// Where a command's result goes: the standard output, or a file that appears whole with commit().
class Output {
 public:
  /// "" or "-": the standard output.
  explicit Output(const std::string& path);
  void write(std::string_view text);
  /// Throws Error when the text could not be written.
  void commit();

 private:
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace prism::cli
