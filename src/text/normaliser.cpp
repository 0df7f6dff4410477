#include "text/normaliser.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "prism/core/error.h"
#include "text/utf8.h"

namespace prism {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string nfc_of_valid(std::string_view text) {
  utf8proc_uint8_t* made = nullptr;
  const auto size = ::utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &made,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  check(size >= 0, "tokenizer: NFC failed: {}", ::utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(size)};
}

}  // namespace

std::string to_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  for_each_run(
      text,
      [&](std::string_view valid) { out += is_ascii(valid) ? std::string(valid) : nfc_of_valid(valid); },
      [&](std::string_view other) { out += other; });
  return out;
}

}  // namespace prism
