#include "text/sentencepiece_trainer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "prism/core/error.h"

namespace prism {
namespace {

/// Hands the sentences to the library one by one.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return at_ == all_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return all_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  size_t at_ = 0;
};

}  // namespace

void SentencePieceTrainer::add(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) sentences_.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string SentencePieceTrainer::train(int64_t vocabulary) {
  const std::unordered_map<std::string, std::string> arguments{{"model_type", type_},
                                                               {"vocab_size", std::to_string(vocabulary)},
                                                               {"hard_vocab_limit", "false"},
                                                               {"normalization_rule_name", "identity"},
                                                               {"remove_extra_whitespaces", "false"},
                                                               {"add_dummy_prefix", "false"},
                                                               {"allow_whitespace_only_pieces", "true"},
                                                               {"byte_fallback", "true"},
                                                               {"character_coverage", "0.9995"},
                                                               {"user_defined_symbols", "\n"},
                                                               {"bos_id", "-1"},
                                                               {"eos_id", "1"},
                                                               {"unk_id", "0"},
                                                               {"num_threads", "1"},
                                                               {"minloglevel", "2"}};
  Sentences sentences(sentences_);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &sentences, &model);
  check(status.ok(), "tokenizer: SentencePiece could not train a vocabulary of {}: {}", vocabulary,
        status.ToString());
  return model;
}

}  // namespace prism
