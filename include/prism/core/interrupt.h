#pragma once

namespace prism {

/// While one lives, the first SIGINT or SIGTERM only sets a flag, so that a loop can finish its step and
/// save; a second one ends the program at once. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that arrived, or 0.
  static int pending();
};

}  // namespace prism
