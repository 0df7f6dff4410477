#include "text/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "text/normaliser.h"

namespace prism {
namespace {

constexpr size_t kCachedWords = size_t{1} << 17, kLongestCached = 64;

/// Names under which files carry the token that ends a document, the surest first.
constexpr const char* kEndNames[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"};

}  // namespace

BpeTokenizer::BpeTokenizer(std::string content, const std::string& file)
    : content_(std::move(content)), file_(file) {
  TokenizerJson json = parse_tokenizer_json(content_, file);
  load_words(json);
  load_merges(json);
  for (const auto& added : json.added)
    (added.normalised ? normalised_added_ : raw_added_).add(added.content, added.id);
  for (const std::string& pattern : json.patterns) splitters_.emplace_back(pattern, file);
  nfc_ = json.nfc, ignore_merges_ = json.ignore_merges;
  for (const char* name : kEndNames)
    for (const auto& added : json.added)
      if (end_ < 0 && added.content == name) end_ = added.id;
  tokens_ = std::move(json.tokens);
}

void BpeTokenizer::load_words(const TokenizerJson& json) {
  for (const auto& [bytes, id] : json.words) ids_.emplace(bytes, id);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(std::string(1, static_cast<char>(byte)));
    check(found != ids_.end(), "{}: has no token for byte 0x{:02x}; this program reads byte-level BPE", file_,
          byte);
    byte_ids_[static_cast<size_t>(byte)] = found->second;
  }
}

void BpeTokenizer::load_merges(const TokenizerJson& json) {
  for (const auto& [left, right] : json.merges) merges_.add(id_of(left), id_of(right), id_of(left + right));
}

int32_t BpeTokenizer::id_of(const std::string& bytes) const {
  const auto found = ids_.find(bytes);
  check(found != ids_.end(), "{}: a merge makes or takes \"{}\", which is no token", file_, shortened(bytes));
  return found->second;
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text) {
  Ids ids;
  raw_added_.split(
      text,
      [&](std::string_view between) {
        if (!nfc_) return encode_normalised(between, ids);
        const std::string normalised = to_nfc(between);
        encode_normalised(normalised, ids);
      },
      [&](int32_t id) { ids.push_back(id); });
  return ids;
}

void BpeTokenizer::encode_normalised(std::string_view text, Ids& ids) {
  normalised_added_.split(
      text, [&](std::string_view between) { encode_from(0, between, ids); },
      [&](int32_t id) { ids.push_back(id); });
}

void BpeTokenizer::encode_from(size_t splitter, std::string_view text, Ids& ids) {
  if (splitter == splitters_.size()) return encode_word(text, ids);
  splitters_[splitter].split(text, [&](std::string_view piece) { encode_from(splitter + 1, piece, ids); });
}

void BpeTokenizer::encode_word(std::string_view word, Ids& ids) {
  if (word.size() > kLongestCached) {
    const Ids own = merged(word);
    ids.insert(ids.end(), own.begin(), own.end());
    return;
  }
  auto found = cache_.find(word);
  if (found == cache_.end()) {
    if (cache_.size() >= kCachedWords) cache_.clear();
    found = cache_.emplace(std::string(word), merged(word)).first;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

std::vector<int32_t> BpeTokenizer::merged(std::string_view word) const {
  if (ignore_merges_)
    if (const auto whole = ids_.find(word); whole != ids_.end()) return {whole->second};
  Ids symbols;
  for (const char byte : word) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  merges_.apply(symbols);
  return symbols;
}

std::string BpeTokenizer::bytes_of(int32_t id) const {
  check_id(id);
  return tokens_[static_cast<size_t>(id)];
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += bytes_of(id);
  return text;
}

int32_t BpeTokenizer::end_of_document() const {
  check(end_ >= 0, "{}: none of its added tokens is known to end a document ({})", file_,
        "<|endoftext|>, <|end_of_text|>, </s>, <eos>, <|im_end|>");
  return end_;
}

}  // namespace prism
