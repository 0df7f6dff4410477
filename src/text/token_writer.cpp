#include <fmt/format.h>

#include <bit>
#include <limits>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/text/token_files.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

/// Writes the values as `T` and continues the checksum over them.
template <class T, class Values>
uint32_t write_values(const fs::path& path, const Values& values, uint32_t crc) {
  const std::vector<T> narrow(values.begin(), values.end());
  write_file(path, {reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(T)});
  return crc32_of(narrow.data(), narrow.size() * sizeof(T), crc);
}

}  // namespace

TokenWriter::TokenWriter(const fs::path& folder, const Tokenizer& tokenizer, int64_t shard_tokens)
    : folder_(folder), tokenizer_(tokenizer), shard_tokens_(shard_tokens), end_(tokenizer.end_of_document()) {
  std::error_code error;
  if (fs::exists(folder) && !fs::is_empty(folder, error))
    usage_error("prepare: {} exists and is not empty; choose another folder with --out", folder.string());
  require_writable_folder(folder);
  index_.tokenizer = tokenizer.fingerprint();
  index_.vocabulary = tokenizer.vocabulary_size();
  index_.wide = index_.vocabulary > int64_t{std::numeric_limits<uint16_t>::max()} + 1;
}

TokenWriter::~TokenWriter() {
  if (finished_) return;
  std::error_code ignored;
  for (const TokenIndex::Shard& shard : index_.shards) {
    fs::remove(folder_ / shard.file, ignored);
    fs::remove(folder_ / shard.borders, ignored);
  }
}

void TokenWriter::add(const std::vector<int32_t>& ids, int64_t bytes) {
  if (static_cast<int64_t>(ids_.size()) >= shard_tokens_) write_shard();
  borders_.push_back(ids_.size());
  ids_.push_back(end_);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++index_.documents;
  index_.bytes += bytes;
}

void TokenWriter::write_shard() {
  TokenIndex::Shard shard{.file = fmt::format("tokens-{:05d}.bin", index_.shards.size()),
                          .borders = fmt::format("documents-{:05d}.bin", index_.shards.size()),
                          .tokens = static_cast<int64_t>(ids_.size()),
                          .documents = static_cast<int64_t>(borders_.size())};
  index_.shards.push_back(shard);  // first, so that it is removed if writing fails
  const uint32_t crc = index_.wide ? write_values<uint32_t>(folder_ / shard.file, ids_, 0)
                                   : write_values<uint16_t>(folder_ / shard.file, ids_, 0);
  index_.shards.back().checksum =
      fmt::format("crc32:{:08x}", write_values<uint64_t>(folder_ / shard.borders, borders_, crc));
  index_.tokens += shard.tokens;
  ids_.clear();
  borders_.clear();
}

TokenIndex TokenWriter::finish() {
  check(index_.documents > 0, "prepare: the files hold no document");
  ids_.push_back(end_);
  write_shard();
  save_tokenizer(tokenizer_, folder_);
  write_file(folder_ / "index.json", index_.to_json());
  finished_ = true;
  return index_;
}

}  // namespace prism
