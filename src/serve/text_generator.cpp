#include "prism/serve/text_generator.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/text/stream_decoder.h"
#include "serve/decoder.h"
#include "serve/stop_texts.h"
#include "train/autocast.h"

namespace prism {
namespace {

/// One text in the making.
struct Writing {
  StreamDecoder decoder;
  StopTexts stops;
  GeneratedText made = {};
  bool ended = false;

  /// Ends with what was held back; returns it.
  std::string end(StopReason reason) {
    made.reason = reason;
    ended = true;
    if (reason == StopReason::kStopText) return "";
    std::string rest = stops.push(decoder.finish());
    return rest + stops.finish();
  }
};

}  // namespace

TextGenerator::TextGenerator(LanguageModel& model, Tokenizer& tokenizer, uint64_t seed, Precision precision)
    : model_(model), tokenizer_(tokenizer), seed_(seed), precision_(precision) {
  check(model.vocabulary() == tokenizer.vocabulary_size(),
        "generate: the model has a vocabulary of {}, the tokenizer of {}", model.vocabulary(),
        tokenizer.vocabulary_size());
}

void TextGenerator::read(const std::vector<std::string>& prompts, int64_t chunk) {
  check(!prompts.empty(), "generate: no prompt");
  const bool begins = sequences_.empty();
  if (begins) sequences_.resize(prompts.size());
  if (prompts.size() != sequences_.size())
    usage_error("generate: {} prompts for {} sequences", prompts.size(), sequences_.size());
  std::vector<std::vector<int32_t>> ids;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ids.push_back(tokenizer_.encode(prompts[i]));
    if (begins)
      ids[i].insert(ids[i].begin(), tokenizer_.end_of_document());
    else
      ids[i].insert(ids[i].begin(), sequences_[i].pending);
    sequences_[i].tokens += static_cast<int64_t>(ids[i].size()) - (begins ? 0 : 1);
    sequences_[i].seen.insert(ids[i].begin(), ids[i].end());
    sequences_[i].pending = ids[i].back();
    ids[i].pop_back();
  }
  append(ids, chunk);
}

/// Puts ids into the state, at most `chunk` of each sequence at once.
void TextGenerator::append(const std::vector<std::vector<int32_t>>& ids, int64_t chunk) {
  const at::NoGradGuard no_gradient;
  const Autocast autocast(model_.embedding().device().type(), precision_);
  size_t longest = 0;
  for (const auto& own : ids) longest = std::max(longest, own.size());
  for (size_t begin = 0; begin < longest; begin += static_cast<size_t>(chunk)) {
    std::vector<int64_t> tokens, lengths;
    for (const auto& own : ids) {
      const size_t from = std::min(begin, own.size());
      const size_t to = std::min(begin + static_cast<size_t>(chunk), own.size());
      tokens.insert(tokens.end(), own.begin() + static_cast<std::ptrdiff_t>(from),
                    own.begin() + static_cast<std::ptrdiff_t>(to));
      lengths.push_back(static_cast<int64_t>(to - from));
    }
    model_.prefill(at::tensor(tokens, at::kLong).to(model_.embedding().device()).unsqueeze(0),
                   Packing::packed(lengths), state_);
  }
}

/// int64 [sequences] on the host.
at::Tensor TextGenerator::pending() const {
  std::vector<int64_t> tokens;
  for (const Sequence& sequence : sequences_) tokens.push_back(sequence.pending);
  return at::tensor(tokens, at::kLong);
}

/// The next token of each sequence. Where nothing is drawn, only the tokens leave the device.
std::vector<int32_t> TextGenerator::choose(const SamplerConfig& sampler, const at::Tensor& logits_BV) const {
  std::vector<int32_t> chosen(sequences_.size(), -1);
  if (sampler.temperature == 0 && sampler.repetition_penalty == 1) {
    const at::Tensor likeliest = likeliest_tokens(logits_BV).to(at::kCPU, at::kInt);
    std::copy_n(likeliest.const_data_ptr<int32_t>(), chosen.size(), chosen.begin());
    if (std::find(chosen.begin(), chosen.end(), -1) == chosen.end()) return chosen;
  }
  const at::Tensor host_BV = logits_BV.to(at::kCPU, at::kFloat).contiguous();
  const auto* logits = host_BV.const_data_ptr<float>();
  const auto vocabulary = static_cast<size_t>(host_BV.size(1));
  at::parallel_for(0, host_BV.size(0), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      chosen[i] = draw(sampler, {logits + i * vocabulary, vocabulary}, i);
  });
  return chosen;
}

int32_t TextGenerator::draw(const SamplerConfig& sampler, std::span<const float> logits_V,
                            size_t index) const {
  const Sequence& sequence = sequences_[index];
  const std::string stream = fmt::format("sample {}", index);
  const double uniform = RandomStream(seed_, stream, static_cast<uint64_t>(sequence.tokens)).uniform();
  return sample_token(sampler, logits_V, sequence.seen, uniform);
}

std::vector<GeneratedText> TextGenerator::generate(const SamplerConfig& sampler, const GenerateConfig& config,
                                                   const OnText& on_text) {
  const at::NoGradGuard no_gradient;
  check(!sequences_.empty(), "generate: nothing was read");
  std::vector<Writing> writings(
      sequences_.size(), Writing{.decoder = StreamDecoder(tokenizer_), .stops = StopTexts(config.stop)});
  bool interrupted = false;
  const auto show = [&](size_t i, const std::string& text) {
    writings[i].made.text += text;
    if (on_text && !text.empty() && !on_text(i, text)) interrupted = true;
  };
  const auto all_ended = [&] {
    return std::all_of(writings.begin(), writings.end(), [](const Writing& own) { return own.ended; });
  };
  Decoder decoder(model_, state_, {.precision = precision_});
  for (int64_t made = 0; made < config.max_tokens && !interrupted && !all_ended(); ++made) {
    const std::vector<int32_t> chosen = choose(sampler, decoder.step(pending()));
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Writing& own = writings[i];
      const int32_t id = chosen[i];
      sequences_[i].pending = id;
      sequences_[i].seen.insert(id);
      ++sequences_[i].tokens;
      if (own.ended) continue;  // its neighbours go on, and the state with them
      own.made.ids.push_back(id);
      if (config.stop_at_end && id == tokenizer_.end_of_document()) {
        show(i, own.end(StopReason::kEndOfDocument));
        continue;
      }
      show(i, own.stops.push(own.decoder.push(id)));
      if (own.stops.stopped()) own.end(StopReason::kStopText);
    }
  }
  std::vector<GeneratedText> texts;
  for (size_t i = 0; i < writings.size(); ++i) {
    if (!writings[i].ended)
      show(i, writings[i].end(interrupted ? StopReason::kInterrupted : StopReason::kMaxTokens));
    texts.push_back(std::move(writings[i].made));
  }
  return texts;
}

}  // namespace prism
