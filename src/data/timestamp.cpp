#include "timestamp.h"

#include <chrono>
#include <ctime>
#include <limits>

#include "prism/data/interactions.h"

namespace prism {
namespace {

constexpr int32_t kMaxDecimals = 18;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes digits from the front of `text`; false when there are not at least `least`, at most `most`.
bool take_digits(std::string_view& text, size_t least, size_t most, int64_t& value) {
  size_t count = 0;
  value = 0;
  while (count < text.size() && count < most && is_digit(text[count]))
    value = 10 * value + (text[count++] - '0');
  text.remove_prefix(count);
  return count >= least;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

// A decimal number before its sign and scale are settled.
struct Digits {
  bool negative = false, any = false, overflow = false;
  int64_t mantissa = 0;  // zero or negative, so that the lowest int64 fits
  int64_t exponent = 0;  // value = mantissa * 10^exponent

  void add(char c) {
    any = true;
    overflow |= __builtin_mul_overflow(mantissa, int64_t{10}, &mantissa);
    overflow |= __builtin_sub_overflow(mantissa, int64_t{c - '0'}, &mantissa);
  }
};

bool read_exponent(std::string_view text, int64_t& exponent) {
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (negative || text.front() == '+')) text.remove_prefix(1);
  int64_t value = 0;
  if (!take_digits(text, 1, 6, value) || !text.empty()) return false;
  exponent += negative ? -value : value;
  return true;
}

// Splits `text` into digits and exponent. Zeros that end a fraction count only when a digit follows.
NumberError read_digits(std::string_view text, Digits& out) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    out.negative = text.front() == '-';
    text.remove_prefix(1);
  }
  size_t i = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) out.add(text[i]);
  if (i < text.size() && text[i] == '.') {
    int64_t zeros = 0;
    for (++i; i < text.size() && is_digit(text[i]); ++i) {
      out.any = true;
      if (text[i] == '0') {
        ++zeros;
        continue;
      }
      for (; zeros > 0; --zeros, --out.exponent) out.add('0');
      out.add(text[i]);
      --out.exponent;
    }
  }
  if (!out.any) return NumberError::kNotANumber;
  if (i < text.size()) {
    if ((text[i] != 'e' && text[i] != 'E') || !read_exponent(text.substr(i + 1), out.exponent))
      return NumberError::kNotANumber;
  }
  return out.overflow ? NumberError::kTooLarge : NumberError::kNone;
}

}  // namespace

NumberError parse_decimal(std::string_view text, Decimal& out) {
  Digits digits;
  const NumberError error = read_digits(trimmed(text), digits);
  if (error != NumberError::kNone) return error;
  int64_t mantissa = digits.mantissa, exponent = mantissa == 0 ? 0 : digits.exponent;
  for (; exponent < 0 && mantissa % 10 == 0; ++exponent) mantissa /= 10;
  if (exponent < -kMaxDecimals) return NumberError::kTooLarge;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(mantissa, int64_t{10}, &mantissa)) return NumberError::kTooLarge;
  if (!digits.negative && mantissa == std::numeric_limits<int64_t>::min()) return NumberError::kTooLarge;
  out = {digits.negative ? mantissa : -mantissa, static_cast<int32_t>(-exponent)};
  return NumberError::kNone;
}

bool rescale(Decimal& value, int32_t decimals) {
  for (; value.decimals < decimals; ++value.decimals)
    if (__builtin_mul_overflow(value.mantissa, int64_t{10}, &value.mantissa)) return false;
  return true;
}

namespace {

// `.25`, `Z`, `+02:00` after a time of day.
bool read_date_tail(std::string_view text, int64_t seconds, Decimal& out) {
  out = {seconds, 0};
  if (!text.empty() && text.front() == '.') {
    size_t end = 1;
    while (end < text.size() && is_digit(text[end])) ++end;
    Decimal fraction;
    if (end == 1 || parse_decimal("0" + std::string(text.substr(0, end)), fraction) != NumberError::kNone)
      return false;
    if (!rescale(out, fraction.decimals)) return false;
    out.mantissa += fraction.mantissa;
    text.remove_prefix(end);
  }
  if (take(text, 'Z') || text.empty()) return text.empty();
  const bool west = text.front() == '-';
  if (!west && text.front() != '+') return false;
  text.remove_prefix(1);
  int64_t hours = 0, minutes = 0;
  if (!take_digits(text, 2, 2, hours)) return false;
  take(text, ':');
  if (!text.empty() && !take_digits(text, 2, 2, minutes)) return false;
  if (hours > 23 || minutes > 59) return false;
  Decimal offset{(hours * 60 + minutes) * 60, 0};
  if (!text.empty() || !rescale(offset, out.decimals)) return false;
  out.mantissa += west ? offset.mantissa : -offset.mantissa;
  return true;
}

}  // namespace

bool parse_iso_date(std::string_view text, Decimal& out) {
  text = trimmed(text);
  int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take_digits(text, 4, 4, year) || !take(text, '-') || !take_digits(text, 2, 2, month) ||
      !take(text, '-') || !take_digits(text, 2, 2, day))
    return false;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return false;
  if (take(text, 'T') || take(text, ' ')) {
    if (!take_digits(text, 2, 2, hour) || !take(text, ':') || !take_digits(text, 2, 2, minute)) return false;
    if (take(text, ':') && !take_digits(text, 2, 2, second)) return false;
    if (hour > 23 || minute > 59 || second > 60) return false;
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return read_date_tail(text, ((days * 24 + hour) * 60 + minute) * 60 + second, out);
}

bool parse_date(std::string_view text, const std::string& format, Decimal& out) {
  std::tm time{};
  time.tm_mday = 1;
  const std::string terminated(trimmed(text));
  const char* rest = ::strptime(terminated.c_str(), format.c_str(), &time);
  if (!rest) return false;
  const auto offset = static_cast<int64_t>(time.tm_gmtoff);  // of %z; timegm does not look at it
  return read_date_tail(rest, static_cast<int64_t>(::timegm(&time)) - offset, out);
}

std::string time_text(int64_t time, int32_t decimals) {
  std::string digits = std::to_string(time);
  if (decimals == 0) return digits;
  const size_t sign = time < 0 ? 1 : 0, width = static_cast<size_t>(decimals) + 1;
  if (digits.size() - sign < width) digits.insert(sign, width - (digits.size() - sign), '0');
  digits.insert(digits.size() - static_cast<size_t>(decimals), ".");
  while (digits.back() == '0') digits.pop_back();
  if (digits.back() == '.') digits.pop_back();
  return digits;
}

}  // namespace prism
