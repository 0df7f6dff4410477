#pragma once
#include <filesystem>
#include <string>

#include "prism/core/files.h"
#include "prism/text/prepare.h"

namespace prism {

/// A token folder of bytes, made anew: one document a line of `text`.
inline std::filesystem::path small_tokens(const std::string& name, const std::string& text) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("prism-" + name);
  fs::remove_all(folder);
  const fs::path file = fs::path(testing::TempDir()) / ("prism-" + name + ".txt");
  write_file(file, text);
  prepare_tokens({file.string()}, {.out = folder.string()}, {.format = TextFormat::kLines});
  return folder;
}

}  // namespace prism
