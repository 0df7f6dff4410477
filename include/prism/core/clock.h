#pragma once
#include <chrono>

namespace prism {

/// Seconds of a clock that never goes back, from an unnamed start.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace prism
