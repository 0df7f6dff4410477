#include <fmt/format.h>

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/mapped_file.h"
#include "prism/core/text.h"
#include "prism/text/token_files.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

void require_size(const fs::path& path, std::string_view bytes, int64_t expected) {
  check(static_cast<int64_t>(bytes.size()) == expected, "{}: has {} bytes, index.json says {}", path.string(),
        with_commas(static_cast<int64_t>(bytes.size())), with_commas(expected));
}

template <class T>
int64_t* copy_ids(std::string_view bytes, int64_t first, int64_t count, int64_t* out) {
  const T* ids = reinterpret_cast<const T*>(bytes.data()) + first;
  return std::copy(ids, ids + count, out);
}

}  // namespace

/// The place of its first token in the whole row, and its files.
struct TokenDataset::Shard {
  Shard(int64_t begin_, const TokenIndex::Shard& described, const fs::path& folder)
      : begin(begin_),
        size(described.tokens),
        ids(folder / described.file),
        borders(folder / described.borders) {}
  int64_t begin, size;
  MappedFile ids, borders;

  const uint64_t* starts() const { return reinterpret_cast<const uint64_t*>(borders.bytes().data()); }
  const uint64_t* starts_end() const { return starts() + borders.bytes().size() / sizeof(uint64_t); }
};

TokenDataset::TokenDataset(const fs::path& folder, bool verify)
    : folder_(folder), index_(TokenIndex::read(folder)) {
  int64_t begin = 0;
  for (const TokenIndex::Shard& described : index_.shards) {
    shards_.push_back(std::make_unique<Shard>(begin, described, folder));
    const Shard& shard = *shards_.back();
    require_size(folder / described.file, shard.ids.bytes(), described.tokens * (index_.wide ? 4 : 2));
    require_size(folder / described.borders, shard.borders.bytes(), described.documents * 8);
    begin += described.tokens;
    if (!verify) continue;
    const uint32_t crc = crc32_of(shard.ids.bytes().data(), shard.ids.bytes().size());
    const std::string found = fmt::format(
        "crc32:{:08x}", crc32_of(shard.borders.bytes().data(), shard.borders.bytes().size(), crc));
    check(found == described.checksum, "{}: was damaged or edited (its checksum is {}, index.json says {})",
          (folder / described.file).string(), found, described.checksum);
  }
  check(begin == index_.tokens, "{}: its shards have {} tokens, it says {}", (folder / "index.json").string(),
        begin, index_.tokens);
}

TokenDataset::~TokenDataset() = default;

void TokenDataset::copy(int64_t first, int64_t count, int64_t* out) const {
  check(first >= 0 && count >= 0 && first + count <= size(), "{}: tokens {} to {} of {}", folder_.string(),
        first, first + count, size());
  for (const auto& shard : shards_) {
    const int64_t from = std::max(first - shard->begin, int64_t{0});
    const int64_t to = std::min(first + count - shard->begin, shard->size);
    if (from >= to) continue;
    out = index_.wide ? copy_ids<uint32_t>(shard->ids.bytes(), from, to - from, out)
                      : copy_ids<uint16_t>(shard->ids.bytes(), from, to - from, out);
  }
}

std::vector<int64_t> TokenDataset::document_starts(int64_t first, int64_t count) const {
  std::vector<int64_t> places;
  for (const auto& shard : shards_) {
    const int64_t from = std::max(first - shard->begin, int64_t{0});
    const auto* start = std::lower_bound(shard->starts(), shard->starts_end(), static_cast<uint64_t>(from));
    for (; start != shard->starts_end(); ++start) {
      const int64_t place = shard->begin + static_cast<int64_t>(*start);
      if (place >= first + count) return places;
      places.push_back(place);
    }
  }
  return places;
}

std::string TokenDataset::fingerprint() const {
  uint32_t crc = 0;
  for (const TokenIndex::Shard& shard : index_.shards)
    crc = crc32_of(shard.checksum.data(), shard.checksum.size(), crc);
  return fmt::format("crc32:{:08x}", crc);
}

}  // namespace prism
