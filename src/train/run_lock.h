#pragma once
#include <filesystem>

namespace prism {

/// Holds a run folder for one training process; the system lets go of it when the process ends, however it
/// does.
class RunLock {
 public:
  /// Error when another process trains in `folder`.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace prism
