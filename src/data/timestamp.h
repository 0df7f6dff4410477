#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prism {

/// mantissa / 10^decimals, exactly; decimals in 0..18 and as small as possible.
struct Decimal {
  int64_t mantissa = 0;
  int32_t decimals = 0;
};

enum class NumberError { kNone, kNotANumber, kTooLarge };

/// `1700000000`, `-5`, `1700000000.25`, `1.7e9`; blanks around it are allowed. kTooLarge: more digits than
/// 64 bits hold.
NumberError parse_decimal(std::string_view text, Decimal& out);

/// Seconds since 1970 (UTC) of `2021-05-13`, `2021-05-13 10:00:00.25`, `2021-05-13T10:00Z`, `...+02:00`.
bool parse_iso_date(std::string_view text, Decimal& out);

/// The same for a strptime format.
bool parse_date(std::string_view text, const std::string& format, Decimal& out);

/// Brings `value` to `decimals` (>= its own). False when 64 bits do not hold the result.
bool rescale(Decimal& value, int32_t decimals);

}  // namespace prism
