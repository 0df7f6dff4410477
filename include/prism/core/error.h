#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace prism {

/// Who has to act on an error; the CLI's exit status follows it.
enum class ErrorKind {
  kData = 1,   ///< bad input data or a run that failed
  kUsage = 2,  ///< wrong flags, settings or arguments
};

/// The one exception type. The message names the operation or file, what was found and what was expected:
/// `prism_chunk: w has 96 value channels a head, v has 64`.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorKind kind = ErrorKind::kData)
      : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error(kData) with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error(kUsage) with a formatted message.
template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...), ErrorKind::kUsage);
}

/// Throws Error(kData) with a formatted message unless `condition` holds.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(format, std::forward<Args>(args)...);
}

}  // namespace prism
