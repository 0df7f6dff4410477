#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "prism/text/tokenizer_training.h"
#include "text/regex_splitter.h"

namespace prism {

/// Byte-level BPE: merges the most frequent pair of neighbours again and again (Sennrich et al. 2016), with
/// counts that are kept up to date instead of counted anew.
class BpeTrainer final : public TokenizerTrainer {
 public:
  BpeTrainer();
  void add(std::string_view text) override;
  std::string train(int64_t vocabulary) override;

 private:
  RegexSplitter splitter_;
  std::unordered_map<std::string, int64_t> words_;
};

}  // namespace prism
