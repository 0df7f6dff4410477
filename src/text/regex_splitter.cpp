#include "text/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "text/utf8.h"

namespace prism {
namespace {

/// PCRE2's \s takes U+180E, which left White_Space with Unicode 6.3; the property is exact.
std::string with_unicode_space(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char kind = pattern[++i];
    if (kind == 's' || kind == 'S')
      out += kind == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else
      out += {'\\', kind};
  }
  return out;
}

std::string message_of(int code) {
  unsigned char buffer[256];
  ::pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexSplitter::RegexSplitter(const std::string& pattern, const std::string& where) {
  const std::string own = with_unicode_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), PCRE2_UTF | PCRE2_UCP,
                              &error, &offset, nullptr),
              ::pcre2_code_free);
  check(code_ != nullptr, "{}: the regular expression \"{}\" is not understood at byte {}: {}", where,
        shortened(own, 200), offset, message_of(error));
  ::pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // slower without, and no different
  match_.reset(::pcre2_match_data_create_from_pattern(code_.get(), nullptr), ::pcre2_match_data_free);
}

void RegexSplitter::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  for_each_run(
      text, [&](std::string_view valid) { split_valid(valid, piece); }, piece);
}

void RegexSplitter::split_valid(std::string_view text,
                                const std::function<void(std::string_view)>& piece) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0, start = 0;
  while (start < text.size()) {
    const int found = ::pcre2_match(code_.get(), subject, text.size(), start,
                                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match_.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    check(found > 0, "tokenizer: the regular expression failed on \"{}\": {}", shortened(text.substr(start)),
          message_of(found));
    const PCRE2_SIZE* ends = ::pcre2_get_ovector_pointer(match_.get());
    if (ends[0] > done) piece(text.substr(done, ends[0] - done));
    piece(text.substr(ends[0], ends[1] - ends[0]));
    done = start = ends[1];
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace prism
