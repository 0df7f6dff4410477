#include "prism/train/run_folder.h"

#include "prism/core/error.h"
#include "prism/core/files.h"

namespace prism {

namespace fs = std::filesystem;

RunFolder RunFolder::open(const fs::path& root) {
  RunFolder folder(root);
  if (!fs::is_directory(root)) usage_error("{} is not a run folder: there is no such folder", root.string());
  if (!fs::exists(folder.config()))
    usage_error("{} is not a run folder: it has no config.toml", root.string());
  return folder;
}

void RunFolder::require_free(const fs::path& root) {
  std::error_code error;
  if (fs::exists(root) && !fs::is_empty(root, error))
    usage_error("train: run folder {} exists; continue it with --resume or choose another with --out",
                root.string());
}

RunFolder RunFolder::create(const fs::path& root, int64_t bytes_needed) {
  require_free(root);
  RunFolder folder(root);
  require_writable_folder(root, bytes_needed);
  require_writable_folder(folder.last().parent_path());
  return folder;
}

}  // namespace prism
