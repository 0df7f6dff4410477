// fmt's functions, compiled once. The wheel has fmt's headers without its library; with FMT_HEADER_ONLY every
// file that formats a message compiles them again, four CPU seconds each.
#include <fmt/format-inl.h>

// What headers only declare.
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(fmt::locale_ref);
template char fmt::detail::decimal_point_impl<char>(fmt::locale_ref);
