#include <algorithm>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/text/token_files.h"

namespace prism {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "prism-tokens";

TokenIndex::Shard read_shard(const json& shard) {
  return {.file = shard.at("file").get<std::string>(),
          .borders = shard.at("borders").get<std::string>(),
          .tokens = shard.at("tokens").get<int64_t>(),
          .documents = shard.at("documents").get<int64_t>(),
          .checksum = shard.at("checksum").get<std::string>()};
}

void check_header(const json& document, const std::string& file) {
  check(document.at("format") == kFormat, "{}: is no index of tokens (format {})", file,
        document.at("format").dump());
  const auto version = document.at("format_version").get<int64_t>();
  check(version <= TokenIndex::kVersion,
        "{}: format version {} is newer than this program reads (up to {}); use a newer prism", file, version,
        TokenIndex::kVersion);
}

}  // namespace

TokenIndex TokenIndex::read(const std::filesystem::path& folder) {
  const std::string file = (folder / "index.json").string();
  check(std::filesystem::exists(file), "{}: is no token folder (no index.json); prism lm prepare makes one",
        folder.string());
  try {
    const json document = json::parse(read_file(file));
    check_header(document, file);
    TokenIndex index{.tokenizer = document.at("tokenizer").get<std::string>(),
                     .vocabulary = document.at("vocabulary").get<int64_t>(),
                     .tokens = document.at("tokens").get<int64_t>(),
                     .documents = document.at("documents").get<int64_t>(),
                     .bytes = document.at("bytes").get<int64_t>(),
                     .shards = {},
                     .wide = document.at("dtype") == "uint32"};
    for (const json& shard : document.at("shards")) index.shards.push_back(read_shard(shard));
    return index;
  } catch (const json::exception& error) {
    fail("{}: is damaged: {}", file, error.what());
  }
}

std::string TokenIndex::to_json() const {
  ordered_json document{{"format", kFormat},
                        {"format_version", kVersion},
                        {"tokenizer", tokenizer},
                        {"vocabulary", vocabulary},
                        {"dtype", wide ? "uint32" : "uint16"},
                        {"tokens", tokens},
                        {"documents", documents},
                        {"bytes", bytes},
                        {"shards", ordered_json::array()}};
  for (const Shard& shard : shards)
    document["shards"].push_back({{"file", shard.file},
                                  {"borders", shard.borders},
                                  {"tokens", shard.tokens},
                                  {"documents", shard.documents},
                                  {"checksum", shard.checksum}});
  return document.dump(2) + "\n";
}

}  // namespace prism
