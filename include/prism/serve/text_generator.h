#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "prism/core/config.h"
#include "prism/models/language_model.h"
#include "prism/models/sampler.h"
#include "prism/text/tokenizer.h"
#include "prism/train/train_config.h"

namespace prism {

/// Section [generate].
struct GenerateConfig {
  int64_t max_tokens = 200, prefill_chunk = 1024;
  std::vector<std::string> stop;
  bool stop_at_end = true;
  static constexpr auto fields = std::tuple{
      Field{"max_tokens", &GenerateConfig::max_tokens, Range{1, 1e12}, "tokens", "to generate at most"},
      Field{"prefill_chunk", &GenerateConfig::prefill_chunk, Range{1, 1e9}, "tokens",
            "of each prompt that are read at once"},
      Field{"stop", &GenerateConfig::stop, Any{}, "", "texts at which to stop; they are not printed"},
      Field{"stop_at_end", &GenerateConfig::stop_at_end, Any{}, "", "stop at the end of the document"}};
};

/// Why a text ended.
enum class StopReason { kMaxTokens, kEndOfDocument, kStopText, kInterrupted };
template <>
struct EnumNames<StopReason> {
  static constexpr std::array names{"max_tokens", "end_of_document", "stop_text", "interrupted"};
};

struct GeneratedText {
  std::string text;  ///< without the prompt and the stop text
  std::vector<int32_t> ids;
  StopReason reason = StopReason::kMaxTokens;
};

/// Several texts that a language model goes on with, token by token. The same prompts, settings and seed give
/// the same texts, whether at once or saved and continued in between, for any prefill_chunk up to rounding.
/// On a GPU a step of a model whose state has a fixed size is recorded once a call and replayed.
class TextGenerator {
 public:
  /// Hears what text `index` goes on with, whole characters at a time; returns false to interrupt all.
  using OnText = std::function<bool(size_t index, const std::string& text)>;

  /// Referents must outlive the generator. The model should be in evaluation mode. `precision` is that of
  /// matrix products, as in training; weights, states and gates stay fp32.
  TextGenerator(LanguageModel& model, Tokenizer& tokenizer, uint64_t seed,
                Precision precision = Precision::kFp32);

  /// Appends a text to each sequence; the first call begins them, as documents. "" appends nothing.
  /// Usage error when the number of prompts changes.
  void read(const std::vector<std::string>& prompts, int64_t chunk);
  /// Goes on with every sequence. Error before read().
  std::vector<GeneratedText> generate(const SamplerConfig& sampler, const GenerateConfig& config,
                                      const OnText& on_text = {});

  /// All that is needed to go on, as a safetensors file: the size of the state, whatever was read.
  void save(const std::filesystem::path& file) const;
  /// Error for a file that is no state, or of another model or tokenizer.
  void load(const std::filesystem::path& file);
  size_t sequences() const { return sequences_.size(); }

 private:
  struct Sequence {
    std::unordered_set<int32_t> seen;
    int32_t pending = 0;  // chosen or read, not yet in the state
    int64_t tokens = 0;   // seen so far, the pending one included
  };

  void append(const std::vector<std::vector<int32_t>>& ids, int64_t chunk);
  at::Tensor pending() const;
  std::vector<int32_t> choose(const SamplerConfig& sampler, const at::Tensor& logits_BV) const;
  int32_t draw(const SamplerConfig& sampler, std::span<const float> logits_V, size_t index) const;

  LanguageModel& model_;
  Tokenizer& tokenizer_;
  uint64_t seed_;
  Precision precision_;
  LanguageModelState state_;
  std::vector<Sequence> sequences_;
};

}  // namespace prism
