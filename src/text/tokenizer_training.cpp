#include "prism/text/tokenizer_training.h"

#include "text/bpe_trainer.h"
#include "text/sentencepiece_trainer.h"

namespace prism {

std::unique_ptr<TokenizerTrainer> make_tokenizer_trainer(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kUnigram:
      return std::make_unique<SentencePieceTrainer>("unigram");
    case TokenizerKind::kSentencePieceBpe:
      return std::make_unique<SentencePieceTrainer>("bpe");
    case TokenizerKind::kBpe:
      break;
  }
  return std::make_unique<BpeTrainer>();
}

}  // namespace prism
