#pragma once
#include "prism/text/tokenizer.h"

namespace prism {

/// Ids 0..255 are the bytes; 256 ends a document and adds none.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string bytes_of(int32_t id) const override;
  int64_t vocabulary_size() const override { return 257; }
  int32_t end_of_document() const override { return 256; }
  std::string file_name() const override { return "bytes"; }
  std::string_view file_content() const override { return ""; }
};

}  // namespace prism
