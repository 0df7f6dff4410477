#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace prism {

/// Text to token ids and back. encode may keep a cache, so one tokenizer serves one thread at a time.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of a text in UTF-8, without anything added at its ends. Byte-level tokenizers take any bytes.
  virtual std::vector<int32_t> encode(std::string_view text) = 0;
  /// The text of ids. Error for an id outside [0, vocabulary_size()).
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The bytes that a token adds to the text before it: perhaps a part of a character. Control tokens of
  /// SentencePiece add none. Error as for decode.
  virtual std::string bytes_of(int32_t id) const = 0;

  virtual int64_t vocabulary_size() const = 0;
  /// The token that ends a document. Error where the tokenizer names none.
  virtual int32_t end_of_document() const = 0;

  /// "bytes", "tokenizer.json" or "tokenizer.model": the name that the tokenizer's file has in a folder.
  virtual std::string file_name() const = 0;
  /// The bytes of that file; "" for bytes.
  virtual std::string_view file_content() const = 0;
  /// Equal for tokenizers made from equal files: "bytes", or "tokenizer.json crc32:0123abcd".
  std::string fingerprint() const;

 protected:
  void check_id(int32_t id) const;
};

/// "bytes" (ids 0..255 are the bytes, 256 ends a document), a Hugging Face tokenizer.json with byte-level BPE
/// (GPT-2, Llama 3, Qwen), or a SentencePiece .model. Error for other files and for a tokenizer.json that
/// asks for something else, naming it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name_or_path);

/// Puts the tokenizer's file into `folder`, where load_tokenizer_in finds it.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);
/// The tokenizer of a folder; `fingerprint` is what its index remembers. Error where the file is missing or
/// another one.
std::unique_ptr<Tokenizer> load_tokenizer_in(const std::filesystem::path& folder,
                                             const std::string& fingerprint);

}  // namespace prism
