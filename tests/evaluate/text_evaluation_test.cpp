// Perplexity, LAMBADA and multiple choice against a plain implementation: one sequence at a time, whole
// log-softmax.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/evaluate/text_loss.h"
#include "prism/evaluate/text_tasks.h"
#include "text/small_tokens.h"

namespace prism {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<LanguageModel> small_model() {
  set_log_level(LogLevel::kQuiet);
  LanguageModelSpec spec("prism");
  Settings settings;
  spec.bind(settings);
  spec.model.width = 16, spec.model.blocks = 2, spec.model.ffn_width = 24;
  auto model = std::make_shared<LanguageModel>(spec, 257, 5);
  model->embedding().data().mul_(40);  // as far from uniform as a trained one
  model->to(at::kDouble);
  model->eval();
  return model;
}

/// log p of every token of `ids` but the first, read as one sequence.
std::vector<double> log_probabilities(LanguageModel& model, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_gradient;
  const at::Tensor all = at::tensor(ids, at::kLong);
  const int64_t inputs = all.size(0) - 1;
  const at::Tensor h = model.forward(all.narrow(0, 0, inputs).unsqueeze(0), Packing::rows()).squeeze(0);
  const at::Tensor log_p =
      at::log_softmax(model.logits(h), 1).gather(1, all.narrow(0, 1, inputs).unsqueeze(1));
  return {log_p.const_data_ptr<double>(), log_p.const_data_ptr<double>() + inputs};
}

std::vector<int64_t> ids_of(const std::string& text) {
  std::vector<int64_t> ids = {256};
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(TextLoss, CountsEveryTargetOnceWhateverTheBatch) {
  const auto model = small_model();
  const TokenDataset dataset(small_tokens("loss", "first line\nb\nthe third one is longer\n"));
  const std::vector<int32_t> bytes = token_bytes(*load_tokenizer("bytes"));
  double expected = 0;  // a context that holds everything: each document as one sequence
  for (const char* line : {"first line", "b", "the third one is longer"}) {
    std::vector<int64_t> ids = ids_of(line);
    ids.push_back(256);
    for (const double own : log_probabilities(*model, ids)) expected -= own;
  }
  for (const int64_t batch : {1, 20, 10'000}) {
    const TextLoss loss = measure_text(*model, dataset, 0, dataset.size(), bytes,
                                       {.context = 100, .stride = 100, .batch_tokens = batch});
    EXPECT_NEAR(loss.nats, expected, 1e-8);
    EXPECT_EQ(loss.tokens, dataset.size() - 1);
    EXPECT_EQ(loss.bytes, 10 + 1 + 23);
  }
  EXPECT_NEAR(TextLoss({.nats = 8 * std::log(2.0), .tokens = 4, .bytes = 2}).bits_per_byte(), 4, 1e-12);
  EXPECT_NEAR(TextLoss({.nats = 8 * std::log(2.0), .tokens = 4, .bytes = 2}).perplexity(), 4, 1e-12);
}

TEST(TextLoss, WindowsMoveByTheStride) {
  const auto model = small_model();
  const std::string text = "abcdefghijklmnopq";
  const TokenDataset dataset(small_tokens("stride", text));
  std::vector<int64_t> ids = ids_of(text);
  ids.push_back(256);
  double expected = 0;
  int64_t scored = 0;
  for (int64_t first = 1; first < static_cast<int64_t>(ids.size()); first += 3) {
    const int64_t last = std::min<int64_t>(first + 3, static_cast<int64_t>(ids.size()));
    const int64_t from = std::max<int64_t>(0, last - 1 - 5);
    const auto own = log_probabilities(*model, {ids.begin() + from, ids.begin() + last});
    for (int64_t i = 0; i < last - first; ++i, ++scored)
      expected -= own[own.size() - 1 - static_cast<size_t>(i)];
  }
  const TextLoss loss = measure_text(*model, dataset, 0, dataset.size(),
                                     token_bytes(*load_tokenizer("bytes")), {.context = 5, .stride = 3});
  EXPECT_NEAR(loss.nats, expected, 1e-8);
  EXPECT_EQ(loss.tokens, scored);
  EXPECT_THROW(measure_text(*model, dataset, 0, dataset.size(), {}, {.context = 5, .stride = 6}), Error);
}

TEST(TokenWindows, StartAnewAtDocuments) {
  const TokenDataset dataset(small_tokens("windows", "ab\nc\n"));  // 256 a b 256 c 256
  const TokenWindow windows[] = {{0, 5}, {1, 2}};
  const TokenBatch batch = make_token_batch(dataset, windows, c10::Device(c10::kCPU));
  EXPECT_THAT(batch.packing.offsets(), ElementsAre(0, 3, 5, 7));
  EXPECT_TRUE(at::equal(batch.tokens[0], at::tensor({256, 97, 98, 256, 99, 97, 98}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.targets, at::tensor({97, 98, 256, 99, 256, 98, 256}, at::kLong)));
  const TokenWindow whole[] = {{0, 2}, {3, 2}};  // no document begins inside: rows
  const TokenBatch rows = make_token_batch(dataset, whole, c10::Device(c10::kCPU));
  EXPECT_FALSE(rows.packing.is_packed());
  EXPECT_TRUE(at::equal(rows.tokens, at::tensor({256, 97, 256, 99}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(rows.targets, at::tensor({97, 98, 99, 256}, at::kLong)));
  EXPECT_THROW(TokenWindows(dataset, 0, 6, 6), Error);
  EXPECT_EQ(TokenWindows(dataset, 0, 6, 2).size(), 2);
}

TEST(TokenWindows, PartsOfABatchGoOnWhereTheOneBeforeEnds) {
  const at::Tensor tokens = at::arange(12);
  const TokenBatch packed{tokens.view({1, 12}), tokens + 1, Packing::packed({3, 5, 4})};
  const std::vector<std::vector<int64_t>> offsets = {{0, 3, 4}, {0, 4}, {0, 0, 4}};  // the last begins at 8
  for (int64_t part = 0; part < 3; ++part) {
    const TokenBatch own = part_of(packed, part, 3);
    EXPECT_TRUE(at::equal(own.tokens, tokens.narrow(0, 4 * part, 4).view({1, 4})));
    EXPECT_TRUE(at::equal(own.targets, own.tokens.flatten() + 1));
    EXPECT_EQ(own.packing.offsets(), offsets[static_cast<size_t>(part)]);
  }
  const TokenBatch rows{tokens.view({2, 6}), tokens + 1, Packing::rows()};
  const TokenBatch second = part_of(rows, 1, 4);
  EXPECT_TRUE(at::equal(second.tokens, at::tensor({1, 2, 7, 8}).view({2, 2})));
  EXPECT_TRUE(at::equal(second.targets, at::tensor({2, 3, 8, 9})));
  EXPECT_FALSE(second.packing.is_packed());
}

TEST(TextTasks, BlanksBelongToTheContinuation) {
  const auto tokenizer = load_tokenizer("bytes");
  const Continuation cut = encode_continuation(*tokenizer, "a b \n", "c");
  EXPECT_THAT(cut.context, ElementsAre('a', ' ', 'b'));
  EXPECT_THAT(cut.continuation, ElementsAre(' ', '\n', 'c'));
  EXPECT_THROW(encode_continuation(*tokenizer, "a", ""), Error);
}

double sum_of_last(const std::vector<double>& values, size_t count) {
  double sum = 0;
  for (size_t i = values.size() - count; i < values.size(); ++i) sum += values[i];
  return sum;
}

TEST(TextTasks, CompletionsAreThoseOfThePlainSum) {
  const auto model = small_model();
  const std::vector<CompletionExample> examples = {
      {"one two", "three"}, {"a", "b"}, {"the quick brown", "fox"}};
  double nats = 0;
  for (const auto& [context, continuation] : examples)
    nats -=
        sum_of_last(log_probabilities(*model, ids_of(context + " " + continuation)), continuation.size() + 1);
  const CompletionResult result = evaluate_completions(*model, *load_tokenizer("bytes"), examples);
  EXPECT_EQ(result.examples, 3);
  EXPECT_NEAR(result.perplexity, std::exp(nats / 3), 1e-6 * std::exp(nats / 3));
  EXPECT_GE(result.accuracy, 0);
}

TEST(TextTasks, GreedyContinuationsCountAsRight) {
  const auto model = small_model();
  std::vector<int64_t> ids = ids_of("so");
  for (int i = 0; i < 3; ++i) {
    const at::Tensor h = model->forward(at::tensor(ids, at::kLong).unsqueeze(0), Packing::rows());
    ids.push_back(model->logits(h[0][-1]).argmax().item<int64_t>());
  }
  Continuation likely{{'s', 'o'}, {ids.end() - 3, ids.end()}}, other = likely;
  other.continuation[1] = (other.continuation[1] + 1) % 256;
  const auto scores = score_continuations(*model, std::vector<Continuation>{likely, other}, 256, 1);
  EXPECT_TRUE(scores[0].greedy);
  EXPECT_FALSE(scores[1].greedy);
  EXPECT_EQ(scores[0].tokens, 3);
}

/// Shares of right options by summed log-probability, and by that over the characters.
std::pair<double, double> plain_accuracies(LanguageModel& model, const std::vector<ChoiceExample>& examples) {
  double right = 0, normalised = 0;
  for (const ChoiceExample& example : examples) {
    std::vector<double> plain, each;
    for (const auto& [context, text] : example.options) {
      plain.push_back(sum_of_last(log_probabilities(model, ids_of(context + " " + text)), text.size() + 1));
      each.push_back(plain.back() / (text == "caf\xC3\xA9" ? 4.0 : static_cast<double>(text.size())));
    }
    right += std::max_element(plain.begin(), plain.end()) - plain.begin() == example.gold;
    normalised += std::max_element(each.begin(), each.end()) - each.begin() == example.gold;
  }
  const auto count = static_cast<double>(examples.size());
  return {right / count, normalised / count};
}

TEST(TextTasks, ChoicesAreThoseOfThePlainSums) {
  const auto model = small_model();
  const std::vector<ChoiceExample> examples = {
      choice_example(ChoiceForm::kAnswers, "Question: x?\n", {"short", "a much longer answer"}, 0),
      choice_example(ChoiceForm::kAnswers, "Question: y?", {"caf\xC3\xA9", "tea", "water"}, 2),
      choice_example(ChoiceForm::kEndings, "Then he ", {"left.", "stayed where he was."}, 1),
      {{{"Ann thanked Bea because Ann", "was helped."}, {"Ann thanked Bea because Bea", "was helped."}}, 0}};
  EXPECT_EQ(examples[0].options[1].context, "Question: x?\nAnswer:");
  EXPECT_EQ(examples[2].options[0].context, "Then he");
  const auto [right, normalised] = plain_accuracies(*model, examples);
  const ChoiceResult result = evaluate_choices(*model, *load_tokenizer("bytes"), examples);
  EXPECT_EQ(result.examples, 4);
  EXPECT_NEAR(result.accuracy, right, 1e-12);
  EXPECT_NEAR(result.normalised_accuracy, normalised, 1e-12);
}

}  // namespace
}  // namespace prism
