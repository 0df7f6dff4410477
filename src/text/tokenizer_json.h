#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace prism {

/// How GPT-2 cuts a text into words.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// What a Hugging Face tokenizer.json with byte-level BPE says.
struct TokenizerJson {
  struct Added {
    std::string content;
    int32_t id = 0;
    bool normalised = false;  ///< looked for after the normaliser
  };
  std::vector<std::string> tokens;                          ///< bytes by id; holes are ""
  std::vector<std::pair<std::string, int32_t>> words;       ///< bytes and id of the model's own vocabulary
  std::vector<std::pair<std::string, std::string>> merges;  ///< bytes of the two sides, first merge first
  std::vector<Added> added;
  std::vector<std::string> patterns;  ///< regular expressions that cut a text, one after the other
  bool nfc = false;
  bool ignore_merges = false;  ///< a piece that is a token is taken whole
};

/// Error, opening with `file`, for JSON of another form and for every part that is not supported, by name.
TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& file);

/// The text of a tokenizer.json with GPT-2's expression, these tokens (the 256 bytes and merged ones, by id)
/// and merges, and `end` as the token that ends a document, with the next id.
std::string make_tokenizer_json(const std::vector<std::string>& tokens,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                const std::string& end);

}  // namespace prism
