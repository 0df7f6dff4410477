#pragma once
#include <cstdint>
#include <string>

#include "prism/text/tokenizer.h"

namespace prism {

/// Text of tokens that come one by one and follow other text: whole characters only. The bytes of a character
/// wait for its last token; bytes that cannot become UTF-8 any more come out as U+FFFD.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// What the token completes; may be "".
  std::string push(int32_t id);
  /// What is left of an unfinished character, as U+FFFD; "" otherwise.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace prism
