#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "prism/core/config.h"

namespace prism {

enum class TokenizerKind { kBpe, kUnigram, kSentencePieceBpe };
template <>
struct EnumNames<TokenizerKind> {
  static constexpr std::array names{"bpe", "sentencepiece_unigram", "sentencepiece_bpe"};
};

/// Learns a tokenizer from texts. The same texts in the same order give the same file.
class TokenizerTrainer {
 public:
  virtual ~TokenizerTrainer() = default;
  /// One more document.
  virtual void add(std::string_view text) = 0;
  /// The content of the tokenizer's file, with at most `vocabulary` tokens. Error where the texts are too few
  /// for it, or `vocabulary` too small for the kind.
  virtual std::string train(int64_t vocabulary) = 0;
};

/// bpe: byte-level BPE cut by GPT-2's expression, as a tokenizer.json; of pairs that are equally frequent the
/// one of the smaller ids is merged. sentencepiece_*: the library's models, without normalisation and with
/// byte fallback, so that every text comes back as it was; a line break is a token.
std::unique_ptr<TokenizerTrainer> make_tokenizer_trainer(TokenizerKind kind);

}  // namespace prism
