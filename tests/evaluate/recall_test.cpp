// Texts with a fact to find again: what they hold, how long they are, and the figures.
#include "prism/evaluate/recall.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include "prism/core/error.h"
#include "prism/evaluate/text_tasks.h"

namespace prism {
namespace {

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Recall, ANeedleStandsOnceAtItsDepth) {
  const auto tokenizer = load_tokenizer("bytes");
  const auto examples =
      make_recall(RecallTask::kNeedle, *tokenizer, {.length = 2000, .examples = 11, .seed = 3});
  ASSERT_EQ(examples.size(), 11U);
  std::set<std::string> answers;
  for (size_t i = 0; i < examples.size(); ++i) {
    const RecallExample& one = examples[i];
    EXPECT_DOUBLE_EQ(one.depth, static_cast<double>(i) / 10);
    const auto size = static_cast<int64_t>(one.text.size() + one.answer.size());
    EXPECT_LE(size, 2000);
    EXPECT_GT(size, 2000 - 45);  // another sentence would not fit
    ASSERT_EQ(occurrences(one.text, one.answer), 1);
    const std::string question = one.text.substr(one.text.rfind("The number of the town "));
    EXPECT_EQ(occurrences(one.text, question), 2);
    EXPECT_EQ(one.text.find(question), one.text.find(one.answer) - question.size());
    EXPECT_NEAR(static_cast<double>(one.text.find(question)) / 1900, one.depth, 0.04);
    answers.insert(one.answer);
  }
  EXPECT_EQ(answers.size(), 11U);
}

TEST(Recall, PairsHaveDifferentKeysAndOneValueIsAskedFor) {
  const auto tokenizer = load_tokenizer("bytes");
  for (const RecallExample& one :
       make_recall(RecallTask::kPairs, *tokenizer, {.length = 6000, .examples = 3})) {
    std::map<std::string, std::string> values;
    std::istringstream lines(one.text);
    std::string line, question;
    while (std::getline(lines, line)) {
      const size_t equals = line.find(" =");
      ASSERT_NE(equals, std::string::npos);
      if (lines.eof())
        question = line.substr(0, equals);
      else
        EXPECT_TRUE(values.emplace(line.substr(0, equals), line.substr(equals + 2)).second) << line;
    }
    EXPECT_GT(values.size(), 300U);
    EXPECT_EQ(values.at(question), one.answer);
  }
}

TEST(Recall, ALongerTextAsksTheSame) {
  const auto tokenizer = load_tokenizer("bytes");
  for (const RecallTask task : {RecallTask::kNeedle, RecallTask::kPairs}) {
    const auto brief = make_recall(task, *tokenizer, {.length = 100, .examples = 4}),
               lengthy = make_recall(task, *tokenizer, {.length = 900, .examples = 4}),
               other = make_recall(task, *tokenizer, {.length = 900, .examples = 4, .seed = 1});
    for (size_t i = 0; i < brief.size(); ++i) {
      EXPECT_EQ(brief[i].answer, lengthy[i].answer);
      EXPECT_NE(lengthy[i].answer, other[i].answer);
    }
  }
  EXPECT_THROW(make_recall(RecallTask::kNeedle, *tokenizer, {.length = 20}), Error);
}

TEST(Recall, FiguresAreThoseOfTheContinuations) {
  LanguageModelSpec spec("prism");
  spec.model.width = 16, spec.model.ffn_width = 24;
  const auto tokenizer = load_tokenizer("bytes");
  LanguageModel model(spec, tokenizer->vocabulary_size(), 5);
  const RecallOptions options{.length = 150, .examples = 6};
  double nats = 0, tokens = 0, right = 0;
  const auto examples = make_recall(RecallTask::kPairs, *tokenizer, options);
  for (const RecallExample& one : examples) {
    const Continuation alone[] = {encode_continuation(*tokenizer, one.text, one.answer)};
    const ContinuationScore score = score_continuations(model, alone, tokenizer->end_of_document())[0];
    EXPECT_EQ(score.tokens, static_cast<int64_t>(one.answer.size()));
    nats -= score.log_probability;
    tokens += static_cast<double>(score.tokens);
    right += score.greedy;
  }
  const RecallResult result = evaluate_recall(model, *tokenizer, examples);
  EXPECT_EQ(result.examples, 6);
  EXPECT_NEAR(result.nats_per_token, nats / tokens, 1e-6);
  EXPECT_DOUBLE_EQ(result.accuracy, right / 6);
  for (const double fifth : result.by_depth) EXPECT_FALSE(std::isnan(fifth));
  const auto first = std::span(examples).first(1);
  EXPECT_TRUE(std::isnan(evaluate_recall(model, *tokenizer, first).by_depth[4]));
}

}  // namespace
}  // namespace prism
