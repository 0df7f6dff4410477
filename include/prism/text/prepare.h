#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "prism/core/config.h"
#include "prism/text/documents.h"
#include "prism/text/token_files.h"

namespace prism {

/// How `prism lm prepare` makes a token folder.
struct PrepareConfig {
  std::string tokenizer = "bytes";
  std::string out = {};
  int64_t shard_tokens = int64_t{1} << 28;
  static constexpr auto fields =
      std::tuple{Field{"tokenizer", &PrepareConfig::tokenizer, Any{}, "",
                       "bytes, a tokenizer.json with byte-level BPE, or a SentencePiece .model"},
                 Field{"out", &PrepareConfig::out, Any{}, "", "folder to create"},
                 Field{"shard_tokens", &PrepareConfig::shard_tokens, Range{1, 1e12}, "tokens",
                       "after which a new file begins, at the next document"}};
};

struct PrepareOutcome {
  int signal = 0;  ///< not 0: stopped by this signal; the folder is empty again
  TokenIndex index = {};
};

/// Turns the documents of `files` into a token folder. Progress goes to stderr.
PrepareOutcome prepare_tokens(const std::vector<std::string>& files, const PrepareConfig& config,
                              const DocumentConfig& documents);

}  // namespace prism
