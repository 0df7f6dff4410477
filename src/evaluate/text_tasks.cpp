#include "prism/evaluate/text_tasks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "prism/core/error.h"
#include "prism/ops/target_log_probabilities.h"

namespace prism {
namespace {

constexpr const char* kBlanks = " \t\n\r";

std::string without_blanks_at_end(const std::string& text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// Scores one batch: all continuations packed one after the other.
std::vector<ContinuationScore> score_batch(LanguageModel& model, std::span<const Continuation> batch,
                                           int32_t end) {
  std::vector<int64_t> tokens, targets, rows, lengths;
  for (const Continuation& one : batch) {
    const size_t begin = tokens.size();
    tokens.push_back(end);
    tokens.insert(tokens.end(), one.context.begin(), one.context.end());
    for (const int32_t target : one.continuation) {
      rows.push_back(static_cast<int64_t>(tokens.size()) - 1);
      targets.push_back(target);
      tokens.push_back(target);
    }
    tokens.pop_back();  // nothing is asked after the last one
    lengths.push_back(static_cast<int64_t>(tokens.size() - begin));
  }
  const auto device = model.embedding().device();
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(device);
  };
  const at::Tensor h = model.forward(tensor(tokens).unsqueeze(0), Packing::packed(lengths))
                           .squeeze(0)
                           .index_select(0, tensor(rows));
  const at::Tensor log_p =
      target_log_probabilities(h, model.embedding(), tensor(targets)).to(at::kCPU, at::kDouble);
  const at::Tensor first = target_is_first(h, model.embedding(), tensor(targets)).cpu();
  std::vector<ContinuationScore> scores;
  int64_t row = 0;
  for (const Continuation& one : batch) {
    ContinuationScore score{.tokens = static_cast<int64_t>(one.continuation.size()), .greedy = true};
    for (int64_t i = 0; i < score.tokens; ++i, ++row) {
      score.log_probability += log_p.const_data_ptr<double>()[row];
      score.greedy = score.greedy && first.const_data_ptr<bool>()[row];
    }
    scores.push_back(score);
  }
  return scores;
}

}  // namespace

Continuation encode_continuation(Tokenizer& tokenizer, const std::string& context,
                                 const std::string& continuation) {
  const std::string kept = without_blanks_at_end(context);
  const std::string moved = context.substr(kept.size()) + continuation;
  std::vector<int32_t> whole = tokenizer.encode(kept + moved);
  const size_t cut = std::min(tokenizer.encode(kept).size(), whole.size());
  check(cut < whole.size(), "evaluate: the continuation \"{}\" has no token of its own", continuation);
  const auto border = whole.begin() + static_cast<std::ptrdiff_t>(cut);
  return {.context = {whole.begin(), border}, .continuation = {border, whole.end()}};
}

std::vector<ContinuationScore> score_continuations(LanguageModel& model, std::span<const Continuation> all,
                                                   int32_t end, int64_t batch_tokens) {
  const at::NoGradGuard no_gradient;
  model.eval();
  const auto length = [&](size_t i) {
    return static_cast<int64_t>(all[i].context.size() + all[i].continuation.size());
  };
  std::vector<ContinuationScore> scores;
  for (size_t first = 0; first < all.size();) {
    size_t last = first;
    for (int64_t tokens = 0; last < all.size() && (last == first || tokens + length(last) <= batch_tokens);
         ++last)
      tokens += length(last);
    const auto batch = score_batch(model, all.subspan(first, last - first), end);
    scores.insert(scores.end(), batch.begin(), batch.end());
    first = last;
  }
  return scores;
}

CompletionResult evaluate_completions(LanguageModel& model, Tokenizer& tokenizer,
                                      std::span<const CompletionExample> examples) {
  check(!examples.empty(), "evaluate: no examples");
  std::vector<Continuation> all;
  for (const CompletionExample& example : examples)
    all.push_back(encode_continuation(tokenizer, example.context, " " + example.continuation));
  CompletionResult result{.examples = static_cast<int64_t>(all.size())};
  double nats = 0;
  for (const ContinuationScore& score : score_continuations(model, all, tokenizer.end_of_document())) {
    result.accuracy += score.greedy;
    nats -= score.log_probability;
  }
  const auto count = static_cast<double>(result.examples);
  result.accuracy /= count;
  result.perplexity = std::exp(nats / count);
  return result;
}

ChoiceResult evaluate_choices(LanguageModel& model, Tokenizer& tokenizer,
                              std::span<const ChoiceExample> examples) {
  check(!examples.empty(), "evaluate: no examples");
  std::vector<Continuation> all;
  for (const ChoiceExample& example : examples)
    for (const ChoiceExample::Option& option : example.options)
      all.push_back(encode_continuation(tokenizer, option.context, " " + option.text));
  const auto scores = score_continuations(model, all, tokenizer.end_of_document());
  ChoiceResult result{.examples = static_cast<int64_t>(examples.size())};
  auto score = scores.begin();
  for (const ChoiceExample& example : examples) {
    std::vector<double> plain, normalised;
    for (const ChoiceExample::Option& option : example.options) {
      plain.push_back(score->log_probability);
      normalised.push_back(score->log_probability /
                           static_cast<double>(std::max<int64_t>(characters(option.text), 1)));
      ++score;
    }
    const auto best = [](const std::vector<double>& values) {
      return std::max_element(values.begin(), values.end()) - values.begin();
    };
    result.accuracy += best(plain) == example.gold;
    result.normalised_accuracy += best(normalised) == example.gold;
  }
  result.accuracy /= static_cast<double>(result.examples);
  result.normalised_accuracy /= static_cast<double>(result.examples);
  return result;
}

}  // namespace prism
