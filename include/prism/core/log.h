#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>

namespace prism {

/// How much reaches stderr. Results always go to stdout, messages always to stderr. kSilent: not even
/// warnings, for processes whose messages another one writes.
enum class LogLevel { kSilent, kQuiet, kNormal };

void set_log_level(LogLevel level);
LogLevel log_level();

namespace detail {
void write_info(const std::string& line);
void write_warning(const std::string& line);
}  // namespace detail

/// One line of information on stderr; silent under --quiet.
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  detail::write_info(fmt::format(format, std::forward<Args>(args)...));
}

/// One line `warning: ...` on stderr, also under --quiet.
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  detail::write_warning(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace prism
