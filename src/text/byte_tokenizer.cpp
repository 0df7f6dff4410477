#include "text/byte_tokenizer.h"

namespace prism {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::string ByteTokenizer::bytes_of(int32_t id) const {
  check_id(id);
  return id == end_of_document() ? "" : std::string(1, static_cast<char>(id));
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += bytes_of(id);
  return text;
}

}  // namespace prism
