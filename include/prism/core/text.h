#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace prism {

/// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

/// counted(1, "row", "rows") -> "1 row"; counted(2000, ...) -> "2,000 rows".
std::string counted(int64_t count, std::string_view one, std::string_view many);

/// 12345678 -> "11.8 MiB".
std::string format_bytes(int64_t bytes);

/// 75.2 -> "1m 15s"; 0.8 -> "0.8s".
std::string format_duration(double seconds);

/// `text` with control characters escaped and cut to `limit` bytes at a character's edge, for messages.
std::string shortened(std::string_view text, size_t limit = 60);

/// The candidate with the smallest edit distance to `name`, or "" when none is near (distance > half of
/// name).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// ` (did you mean "x"?)`, or "" when no candidate is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace prism
