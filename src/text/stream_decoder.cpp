#include "prism/text/stream_decoder.h"

#include <string_view>
#include <utility>

#include "text/utf8.h"

namespace prism {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_->bytes_of(id);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Character next = first_character(rest);
    if (next.kind == Utf8::kIncomplete) break;
    out += next.kind == Utf8::kValid ? rest.substr(0, next.length) : kReplacement;
    rest.remove_prefix(next.length);
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDecoder::finish() {
  return std::exchange(pending_, "").empty() ? "" : std::string(kReplacement);
}

}  // namespace prism
