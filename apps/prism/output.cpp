#include "output.h"

#include <cstdio>

#include "prism/core/error.h"

namespace prism::cli {

Output::Output(const std::string& path) {
  if (!path.empty() && path != "-") file_ = std::make_unique<AtomicFile>(path);
}

void Output::write(std::string_view text) {
  if (file_)
    file_->write(text);
  else
    check(std::fwrite(text.data(), 1, text.size(), stdout) == text.size(),
          "cannot write to the standard output");
}

void Output::commit() {
  if (file_)
    file_->commit();
  else
    check(std::fflush(stdout) == 0, "cannot write to the standard output");
}

}  // namespace prism::cli
