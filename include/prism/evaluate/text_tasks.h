#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "prism/models/language_model.h"
#include "prism/text/examples.h"
#include "prism/text/tokenizer.h"

namespace prism {

/// Tokens that a model is given, and tokens whose probability is asked for (at least one).
struct Continuation {
  std::vector<int32_t> context, continuation;
};

/// `context` and then `continuation` as tokens, cut where the tokens of `context` alone end, so that both are
/// tokenised as they stand in text. White space at the end of the context counts to the continuation.
Continuation encode_continuation(Tokenizer& tokenizer, const std::string& context,
                                 const std::string& continuation);

struct ContinuationScore {
  double log_probability = 0;  ///< natural, summed over the continuation's tokens
  int64_t tokens = 0;
  bool greedy = false;  ///< no other token is likelier at any place
};

/// The model reads the end-of-document token `end`, the context and the continuation. It is put into
/// evaluation mode. The same figures, to rounding, for any batch_tokens.
std::vector<ContinuationScore> score_continuations(LanguageModel& model, std::span<const Continuation> all,
                                                   int32_t end, int64_t batch_tokens = 8192);

struct CompletionResult {
  int64_t examples = 0;
  double accuracy = 0;    ///< share of continuations that greedy decoding gives
  double perplexity = 0;  ///< exp of the mean negative log-probability of a whole continuation
};

/// LAMBADA: the continuation stands after a blank.
CompletionResult evaluate_completions(LanguageModel& model, Tokenizer& tokenizer,
                                      std::span<const CompletionExample> examples);

struct ChoiceResult {
  int64_t examples = 0;
  double accuracy = 0;             ///< the right option has the highest log-probability
  double normalised_accuracy = 0;  ///< the same after division by the option's characters
};

/// The option's text stands after its context and a blank. Of equal scores the first option counts.
ChoiceResult evaluate_choices(LanguageModel& model, Tokenizer& tokenizer,
                              std::span<const ChoiceExample> examples);

}  // namespace prism
