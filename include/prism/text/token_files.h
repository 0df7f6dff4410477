#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "prism/text/tokenizer.h"

namespace prism {

/// What index.json of a token folder says. The folder holds one row of tokens: every document is the
/// end-of-document token and then its own; one more end-of-document token ends the row. So the token stands
/// in front of every document and behind it, and a model that starts anew at it sees what it sees in text.
struct TokenIndex {
  std::string tokenizer = {};  ///< its fingerprint
  int64_t vocabulary = 0;
  int64_t tokens = 0, documents = 0;
  int64_t bytes = 0;  ///< of the documents' texts
  struct Shard {
    std::string file = {}, borders = {};  ///< names of token ids and of first tokens of documents (uint64)
    int64_t tokens = 0, documents = 0;
    std::string checksum = {};  ///< over both files
  };
  std::vector<Shard> shards = {};
  bool wide = false;  ///< ids are uint32, not uint16

  static constexpr int64_t kVersion = 1;
  /// Error naming the file where it is missing, damaged or of a newer version.
  static TokenIndex read(const std::filesystem::path& folder);
  std::string to_json() const;
};

/// Writes a token folder. Every file appears whole, index.json last: a folder without it is none. Without
/// finish() everything that was written is removed again.
class TokenWriter {
 public:
  /// Usage error where `folder` exists and is not empty. `tokenizer` must outlive the writer.
  TokenWriter(const std::filesystem::path& folder, const Tokenizer& tokenizer, int64_t shard_tokens);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// One more document of `bytes` bytes of text.
  void add(const std::vector<int32_t>& ids, int64_t bytes);
  /// Writes what is left and the index. Error where there is no document.
  TokenIndex finish();

 private:
  void write_shard();

  std::filesystem::path folder_;
  bool finished_ = false;
  const Tokenizer& tokenizer_;
  int64_t shard_tokens_;
  int32_t end_;
  TokenIndex index_;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> borders_;
};

/// A token folder, mapped into memory.
class TokenDataset {
 public:
  /// Error naming the file where one is missing or has another size than the index says. verify reads
  /// everything and compares the checksums.
  explicit TokenDataset(const std::filesystem::path& folder, bool verify = false);
  ~TokenDataset();
  TokenDataset(const TokenDataset&) = delete;
  TokenDataset& operator=(const TokenDataset&) = delete;

  const TokenIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }
  int64_t size() const { return index_.tokens; }
  /// Tokens [first, first + count) as int64.
  void copy(int64_t first, int64_t count, int64_t* out) const;
  /// Places in [first, first + count) where a document begins, in order.
  std::vector<int64_t> document_starts(int64_t first, int64_t count) const;
  /// A text that changes with the content: checksums of all shards.
  std::string fingerprint() const;

 private:
  struct Shard;

  std::filesystem::path folder_;
  TokenIndex index_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace prism
