#pragma once
#include <cstdint>
#include <vector>

#include "prism/evaluate/token_windows.h"
#include "prism/models/language_model.h"
#include "prism/text/token_files.h"
#include "prism/text/tokenizer.h"

namespace prism {

/// Loss of a language model over a text. Every figure counts all targets, end-of-document tokens included.
struct TextLoss {
  double nats = 0;
  int64_t tokens = 0;  ///< targets
  int64_t bytes = 0;   ///< of the targets' text; an end of document has none
  double nats_per_token() const;
  double perplexity() const;
  double bits_per_byte() const;
};

/// Bytes of text that each token of a vocabulary adds; 0 for the end of a document.
std::vector<int32_t> token_bytes(const Tokenizer& tokenizer);

struct TextLossOptions {
  int64_t context = 1024;  ///< inputs that the model sees at most
  int64_t stride = 1024;   ///< targets that a window adds, the last ones; at most `context`
  int64_t batch_tokens = 8192;
};

/// Loss of the targets in tokens [begin + 1, end) of `dataset`: windows of `context` inputs that move by
/// `stride`, each starting anew; documents start anew inside. The model is put into evaluation mode.
/// `bytes` as token_bytes gives them. The same figure, to rounding, for any batch_tokens.
TextLoss measure_text(LanguageModel& model, const TokenDataset& dataset, int64_t begin, int64_t end,
                      const std::vector<int32_t>& bytes, const TextLossOptions& options);

}  // namespace prism
