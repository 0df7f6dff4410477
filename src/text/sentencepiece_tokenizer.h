#pragma once
#include <memory>
#include <string>
#include <vector>

#include "prism/text/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace prism {

/// A SentencePiece model through its library. Its normaliser may change the text: decode gives what it made
/// of it.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// `content` of the file called `file`, which opens error messages.
  SentencePieceTokenizer(std::string content, const std::string& file);
  ~SentencePieceTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string bytes_of(int32_t id) const override;
  int64_t vocabulary_size() const override;
  int32_t end_of_document() const override;
  std::string file_name() const override { return "tokenizer.model"; }
  std::string_view file_content() const override { return content_; }

 private:
  std::string content_, file_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
};

}  // namespace prism
