#pragma once
#include <string>
#include <vector>

#include "prism/text/tokenizer_training.h"

namespace prism {

/// Models of the SentencePiece library. Sentences are the lines of the texts.
class SentencePieceTrainer final : public TokenizerTrainer {
 public:
  /// `type` as the library names it: "unigram" or "bpe".
  explicit SentencePieceTrainer(std::string type) : type_(std::move(type)) {}
  void add(std::string_view text) override;
  std::string train(int64_t vocabulary) override;

 private:
  std::string type_;
  std::vector<std::string> sentences_;
};

}  // namespace prism
