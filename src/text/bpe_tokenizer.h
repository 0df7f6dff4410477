#pragma once
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "prism/text/tokenizer.h"
#include "text/added_tokens.h"
#include "text/bpe_merges.h"
#include "text/regex_splitter.h"
#include "text/tokenizer_json.h"

namespace prism {

/// Byte-level BPE from a Hugging Face tokenizer.json: added tokens, NFC, regular expressions, merges. Tokens
/// of the file's post-processor (a begin token) are not added.
class BpeTokenizer final : public Tokenizer {
 public:
  /// `content` of the file called `file`, which opens error messages.
  BpeTokenizer(std::string content, const std::string& file);

  std::vector<int32_t> encode(std::string_view text) override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string bytes_of(int32_t id) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t end_of_document() const override;
  std::string file_name() const override { return "tokenizer.json"; }
  std::string_view file_content() const override { return content_; }

 private:
  using Ids = std::vector<int32_t>;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  void load_words(const TokenizerJson& json);
  void load_merges(const TokenizerJson& json);
  int32_t id_of(const std::string& bytes) const;
  void encode_normalised(std::string_view text, Ids& ids);
  void encode_from(size_t splitter, std::string_view text, Ids& ids);
  void encode_word(std::string_view word, Ids& ids);
  Ids merged(std::string_view word) const;

  std::string content_, file_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::array<int32_t, 256> byte_ids_{};
  BpeMerges merges_;
  AddedTokens raw_added_, normalised_added_;
  std::vector<RegexSplitter> splitters_;
  bool nfc_ = false, ignore_merges_ = false;
  int32_t end_ = -1;
  std::unordered_map<std::string, Ids, Hash, std::equal_to<>> cache_;
};

}  // namespace prism
