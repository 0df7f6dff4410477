#include "text_blocks.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr size_t kOpenQuoteBytes = size_t{1} << 26;

// End of the last whole record of `text`, where quotes that open a field hide line breaks.
size_t last_record_end(std::string_view text, std::string_view separator) {
  size_t end = 0;
  bool field_start = true;
  for (size_t i = 0; i < text.size();) {
    if (field_start && text[i] == '"') {
      i = text.find('"', i + 1);
      while (i != text.npos && i + 1 < text.size() && text[i + 1] == '"') i = text.find('"', i + 2);
      if (i == text.npos) return end;
      ++i;
      field_start = false;
    } else if (text[i] == '\n') {
      end = ++i;
      field_start = true;
    } else if (text.substr(i).starts_with(separator)) {
      i += separator.size();
      field_start = true;
    } else {
      ++i;
      field_start = false;
    }
  }
  return end;
}

}  // namespace

TextBlocks::TextBlocks(const std::filesystem::path& path, Encoding encoding)
    : name_(path.string()), source_(path) {
  read_more(4);
  drop_mark(encoding);
  const auto has_line = [&] {
    return pending_.find('\n') != pending_.npos || pending_.size() > kOpenQuoteBytes;
  };
  while (!at_end_ && (pending_.size() < kHeadBytes || !has_line())) read_more(kHeadBytes);
}

void TextBlocks::drop_mark(Encoding encoding) {
  using namespace std::string_view_literals;
  const bool little = pending_.starts_with("\xFF\xFE"sv), big = pending_.starts_with("\xFE\xFF"sv);
  if (pending_.starts_with("\xEF\xBB\xBF"sv)) {
    mark_ = true;
    pending_.erase(0, 3);
  } else if (little || big || encoding == Encoding::kUtf16) {
    mark_ = little || big;
    utf16_.emplace(big);
    const std::string bytes = pending_.substr(mark_ ? 2 : 0);
    pending_.clear();
    utf16_->append(bytes, pending_);
  }
}

void TextBlocks::read_more(size_t bytes) {
  const size_t before = pending_.size();
  size_t got = 0;
  if (utf16_) {
    std::string raw(bytes, '\0');
    got = source_.read(raw.data(), bytes);
    utf16_->append(std::string_view(raw).substr(0, got), pending_);
  } else {
    pending_.resize(before + bytes);
    got = source_.read(pending_.data() + before, bytes);
    pending_.resize(before + got);
  }
  at_end_ = got == 0;
  check(!at_end_ || !utf16_ || !utf16_->unfinished(), "{}: the UTF-16 text ends inside a character", name_);
  check(!utf16_ || utf16_->unpaired() == 0, "{}: not UTF-16: it holds half of a surrogate pair", name_);
}

size_t TextBlocks::whole_records() const {
  if (at_end_) return pending_.size();
  const std::string_view text = pending_;
  if (quoting_ && text.find('"') != text.npos) return last_record_end(text, *quoting_);
  const size_t newline = text.rfind('\n');
  return newline == text.npos ? 0 : newline + 1;
}

bool TextBlocks::next(std::string& block) {
  size_t wanted = kBlockBytes, end = 0;
  do {
    while (!at_end_ && pending_.size() < wanted) read_more(wanted - pending_.size());
    end = whole_records();
    wanted = 2 * pending_.size();  // a record longer than the block
    if (end == 0 && quoting_ && wanted > kOpenQuoteBytes && pending_.find('"') != pending_.npos)
      end = pending_.size();  // a quote that is never closed; the parser knows its line
  } while (end == 0 && !at_end_);
  if (end == 0) return false;
  std::string rest;
  rest.reserve(kBlockBytes + kHeadBytes);
  rest.assign(pending_, end);
  pending_.resize(end);
  block = std::move(pending_);
  pending_ = std::move(rest);
  return true;
}

int64_t line_at(std::string_view text, size_t offset) {
  return std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
}

Settled settle_encoding(std::string& text, Encoding encoding) {
  const TextScan scan = scan_utf8(text);
  Settled settled;
  if (scan.bad_count == 0 && scan.multibyte == 0) return settled;
  if (scan.bad_count > 0) {
    settled.bad_line = line_at(text, scan.bad);
    settled.bad_byte = static_cast<unsigned char>(text[scan.bad]);
  }
  settled.encoding = SeenEncoding::kUtf8;
  if (encoding == Encoding::kLatin1 || (encoding == Encoding::kAuto && scan.bad_count > scan.multibyte)) {
    text = latin1_to_utf8(text);
    settled.encoding = SeenEncoding::kLatin1;
  }
  return settled;
}

void warn_latin1(const std::string& file, int64_t line) {
  warn("{} line {} is not UTF-8; the file is read as Latin-1 (ISO-8859-1), --encoding latin1 confirms it",
       file, with_commas(line));
}

std::string not_utf8_message(unsigned byte) {
  return fmt::format(": byte 0x{:02X} is not UTF-8; give --encoding latin1 if the file is ISO-8859-1", byte);
}

}  // namespace prism
