#include "prism/text/tokenizer.h"

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "text/bpe_tokenizer.h"
#include "text/byte_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";

}  // namespace

std::string Tokenizer::fingerprint() const {
  const std::string_view content = file_content();
  if (content.empty()) return file_name();
  return fmt::format("{} crc32:{:08x}", file_name(), crc32_of(content.data(), content.size()));
}

void Tokenizer::check_id(int32_t id) const {
  check(id >= 0 && id < vocabulary_size(), "tokenizer: there is no token {} in a vocabulary of {}", id,
        vocabulary_size());
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name_or_path) {
  if (name_or_path == kBytes) return std::make_unique<ByteTokenizer>();
  const std::string extension = fs::path(name_or_path).extension().string();
  if (extension != ".json" && extension != ".model")
    usage_error("tokenizer: \"{}\" is neither bytes nor a tokenizer.json nor a SentencePiece .model",
                name_or_path);
  std::string content = read_file(name_or_path);
  if (extension == ".json") return std::make_unique<BpeTokenizer>(std::move(content), name_or_path);
  return std::make_unique<SentencePieceTokenizer>(std::move(content), name_or_path);
}

void save_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  if (!tokenizer.file_content().empty()) write_file(folder / tokenizer.file_name(), tokenizer.file_content());
}

std::unique_ptr<Tokenizer> load_tokenizer_in(const fs::path& folder, const std::string& fingerprint) {
  const std::string name = fingerprint.substr(0, fingerprint.find(' '));
  auto tokenizer = load_tokenizer(name == kBytes ? name : (folder / name).string());
  check(tokenizer->fingerprint() == fingerprint, "{}: holds the tokenizer {}, its index was made with {}",
        folder.string(), tokenizer->fingerprint(), fingerprint);
  return tokenizer;
}

}  // namespace prism
