#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "prism/core/config.h"
#include "prism/models/language_model.h"
#include "prism/text/tokenizer.h"

namespace prism {

/// What a language model has to find again in a long text.
enum class RecallTask {
  kNeedle,  ///< one fact among sentences that say nothing of it
  kPairs,   ///< the value of one of as many keys as the text holds (multi-query associative recall)
};
template <>
struct EnumNames<RecallTask> {
  static constexpr std::array names{"needle", "pairs"};
};

struct RecallOptions {
  int64_t length = 1024;  ///< tokens of a text and its question, at most; they are as long as sentences allow
  int64_t examples = 50;
  uint64_t seed = 42;
};

struct RecallExample {
  std::string text;    ///< and the question, up to where the answer stands
  std::string answer;  ///< with the blank before it
  double depth = 0;    ///< where the fact stands in the text: 0 at the beginning, 1 at the end
};

/// Examples whose facts stand at depths that are spread evenly over the text. Names and numbers are drawn
/// from the streams {seed, task, example}, so a longer text asks the same. Usage error for lengths that a
/// fact and its question do not fit in; Error for a tokenizer that has no tokens for digits.
std::vector<RecallExample> make_recall(RecallTask task, Tokenizer& tokenizer, const RecallOptions& options);

struct RecallResult {
  int64_t examples = 0;
  double accuracy = 0;        ///< share of answers that greedy decoding gives
  double nats_per_token = 0;  ///< of the answers
  /// Accuracy for facts in each fifth of the text; NaN where none stands.
  std::array<double, 5> by_depth = {};
};

/// The model is put into evaluation mode.
RecallResult evaluate_recall(LanguageModel& model, Tokenizer& tokenizer,
                             std::span<const RecallExample> examples);

}  // namespace prism
