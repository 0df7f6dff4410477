#pragma once
#include <filesystem>
#include <string>

namespace prism {

/// Names of the files of a training run; docs/run-folder.md describes them.
class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path root) : root_(std::move(root)) {}
  /// A usage error unless `root` is a run folder.
  static RunFolder open(const std::filesystem::path& root);
  /// Usage error when `root` exists and is not empty.
  static void require_free(const std::filesystem::path& root);
  /// Creates the folder. Usage error when `root` exists and is not empty; Error when it cannot be written or
  /// has less than `bytes_needed` free.
  static RunFolder create(const std::filesystem::path& root, int64_t bytes_needed);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.toml"; }
  std::filesystem::path dataset() const { return root_ / "dataset.json"; }
  std::filesystem::path items() const { return root_ / "items.txt"; }
  std::filesystem::path users() const { return root_ / "users.txt"; }
  std::filesystem::path titles() const { return root_ / "titles.txt"; }
  std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  std::filesystem::path events() const { return root_ / "events.out.tfevents.prism"; }
  std::filesystem::path last() const { return root_ / "checkpoints" / "last.safetensors"; }
  std::filesystem::path best() const { return root_ / "checkpoints" / "best.safetensors"; }
  std::filesystem::path results() const { return root_ / "results.json"; }
  std::filesystem::path report() const { return root_ / "report"; }

 private:
  std::filesystem::path root_;
};

}  // namespace prism
