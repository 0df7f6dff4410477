#include "prism/evaluate/recall.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/evaluate/text_tasks.h"

namespace prism {
namespace {

/// A word of four syllables that no text knows: 24 million of them.
std::string invented_word(RandomStream& random) {
  constexpr std::string_view kOnsets = "bdfgklmnprstvz", kVowels = "aeiou";
  std::string word;
  for (int i = 0; i < 4; ++i) {
    word += kOnsets[random.below(kOnsets.size())];
    word += kVowels[random.below(kVowels.size())];
  }
  return word;
}

std::string five_digits(RandomStream& random) { return std::to_string(10'000 + random.below(90'000)); }

/// Sentences of a text without the fact. Text number n has the first n of them.
class Filler {
 public:
  virtual ~Filler() = default;
  virtual std::string sentence(int64_t index) = 0;
};

class Countryside final : public Filler {
 public:
  std::string sentence(int64_t index) override {
    constexpr const char* kSentences[] = {
        "The river runs between two hills. ", "In the morning the fields are wet. ",
        "A road leads past the old mill. ", "Nobody remembers who built the bridge. ",
        "At night the wind comes from the sea. "};
    return kSentences[static_cast<size_t>(index) % std::size(kSentences)];
  }
};

/// Pairs with keys that no other pair has.
class OtherPairs final : public Filler {
 public:
  OtherPairs(RandomStream random, const std::string& asked) : random_(random), keys_{asked} {}
  std::string sentence(int64_t index) override {
    while (static_cast<int64_t>(made_.size()) <= index) {
      std::string key = invented_word(random_);
      if (!keys_.insert(key).second) continue;
      made_.push_back(fmt::format("{} = {}\n", key, five_digits(random_)));
    }
    return made_[static_cast<size_t>(index)];
  }

 private:
  RandomStream random_;
  std::set<std::string> keys_;
  std::vector<std::string> made_;
};

/// A fact, what asks for it, and what stands around it.
struct Riddle {
  std::string fact, question, answer;
  std::unique_ptr<Filler> filler;
};

Riddle riddle_of(RecallTask task, uint64_t seed, uint64_t example) {
  RandomStream random(seed, enum_name(task), example);
  const std::string name = invented_word(random), number = five_digits(random), answer = " " + number;
  if (task == RecallTask::kNeedle)
    return {.fact = fmt::format("The number of the town {} is {}. ", name, number),
            .question = fmt::format("The number of the town {} is", name),
            .answer = answer,
            .filler = std::make_unique<Countryside>()};
  return {.fact = fmt::format("{} = {}\n", name, number),
          .question = fmt::format("{} =", name),
          .answer = answer,
          .filler = std::make_unique<OtherPairs>(random, name)};
}

/// The riddle among `sentences` others.
std::string text_of(const Riddle& riddle, int64_t sentences, double depth) {
  const auto before = static_cast<int64_t>(std::llround(depth * static_cast<double>(sentences)));
  std::string text;
  for (int64_t i = 0; i < sentences; ++i) {
    if (i == before) text += riddle.fact;
    text += riddle.filler->sentence(i);
  }
  if (before == sentences) text += riddle.fact;
  return text + riddle.question;
}

RecallExample make_example(const Riddle& riddle, Tokenizer& tokenizer, double depth, int64_t length) {
  const auto tokens = [&](int64_t sentences) {
    return static_cast<int64_t>(tokenizer.encode(text_of(riddle, sentences, depth) + riddle.answer).size());
  };
  if (tokens(0) > length)
    usage_error("recall: a fact and its question take {} tokens; a length of {} is too short", tokens(0),
                length);
  int64_t fits = 0, too_many = 1;  // sentences
  while (tokens(too_many) <= length) fits = std::exchange(too_many, 2 * too_many);
  while (too_many - fits > 1) {
    const int64_t middle = (fits + too_many) / 2;
    (tokens(middle) <= length ? fits : too_many) = middle;
  }
  return {.text = text_of(riddle, fits, depth), .answer = riddle.answer, .depth = depth};
}

/// Where all digits are one unknown token, every answer would be right.
void require_digits(Tokenizer& tokenizer) {
  const std::string digits = "0123456789", back = tokenizer.decode(tokenizer.encode(digits));
  check(back.find(digits) != std::string::npos,
        "recall: the tokenizer gives \"{}\" back as \"{}\"; answers are digits", digits, back);
}

}  // namespace

std::vector<RecallExample> make_recall(RecallTask task, Tokenizer& tokenizer, const RecallOptions& options) {
  require_digits(tokenizer);
  std::vector<RecallExample> examples;
  const auto steps = static_cast<double>(std::max<int64_t>(options.examples - 1, 1));
  for (int64_t i = 0; i < options.examples; ++i)
    examples.push_back(make_example(riddle_of(task, options.seed, static_cast<uint64_t>(i)), tokenizer,
                                    static_cast<double>(i) / steps, options.length));
  return examples;
}

RecallResult evaluate_recall(LanguageModel& model, Tokenizer& tokenizer,
                             std::span<const RecallExample> examples) {
  check(!examples.empty(), "recall: no examples");
  std::vector<Continuation> all;
  for (const RecallExample& example : examples)
    all.push_back(encode_continuation(tokenizer, example.text, example.answer));
  const auto scores = score_continuations(model, all, tokenizer.end_of_document());
  RecallResult result{.examples = static_cast<int64_t>(examples.size())};
  std::array<double, 5> right = {}, of = {};
  double nats = 0, tokens = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto fifth = std::min<size_t>(static_cast<size_t>(5 * examples[i].depth), 4);
    of[fifth] += 1;
    right[fifth] += scores[i].greedy;
    result.accuracy += scores[i].greedy;
    nats -= scores[i].log_probability;
    tokens += static_cast<double>(scores[i].tokens);
  }
  result.accuracy /= static_cast<double>(examples.size());
  result.nats_per_token = nats / tokens;
  for (size_t i = 0; i < of.size(); ++i) result.by_depth[i] = right[i] / of[i];
  return result;
}

}  // namespace prism
