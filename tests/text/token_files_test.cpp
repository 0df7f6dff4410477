#include "prism/text/token_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/text/prepare.h"
#include "support/error_of.h"

namespace prism {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TokenFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kQuiet);
    root_ = fs::path(testing::TempDir()) /
            (std::string("prism-tokens-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  std::string write(const std::string& name, const std::string& content) const {
    write_file(root_ / name, content);
    return (root_ / name).string();
  }
  /// Prepares with bytes as tokens.
  TokenIndex prepare(const std::vector<std::string>& files, const DocumentConfig& documents = {},
                     int64_t shard_tokens = 1000) const {
    PrepareConfig config{.out = out().string(), .shard_tokens = shard_tokens};
    return prepare_tokens(files, config, documents).index;
  }
  fs::path out() const { return root_ / "tokens"; }
  static std::vector<int64_t> all(const TokenDataset& dataset) {
    std::vector<int64_t> tokens(static_cast<size_t>(dataset.size()));
    dataset.copy(0, dataset.size(), tokens.data());
    return tokens;
  }

  fs::path root_;
};

TEST_F(TokenFiles, EveryDocumentStandsBetweenEndTokens) {
  const std::string text =
      write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n\n{\"text\":\"c\",\"id\":7}");
  const TokenIndex index = prepare({text});
  EXPECT_EQ(index.documents, 2);
  EXPECT_EQ(index.bytes, 3);
  const TokenDataset dataset(out(), /*verify=*/true);
  EXPECT_THAT(all(dataset), ElementsAre(256, 'a', 'b', 256, 'c', 256));
  EXPECT_THAT(dataset.document_starts(0, 6), ElementsAre(0, 3));
  EXPECT_THAT(dataset.document_starts(1, 2), ElementsAre());
  EXPECT_THAT(dataset.document_starts(3, 1), ElementsAre(3));
}

TEST_F(TokenFiles, ShardsReadAsOneRow) {
  const std::string text = write("a.txt", "one\ntwo\r\n\nthree");
  const TokenIndex one = prepare({text}, {.format = TextFormat::kLines});
  const std::vector<int64_t> expected = all(TokenDataset(out()));
  fs::remove_all(out());
  const TokenIndex many = prepare({text}, {.format = TextFormat::kLines}, /*shard_tokens=*/2);
  EXPECT_EQ(one.shards.size(), 1U);
  EXPECT_EQ(many.shards.size(), 3U);
  const TokenDataset dataset(out(), true);
  EXPECT_EQ(all(dataset), expected);
  EXPECT_THAT(dataset.document_starts(0, dataset.size()), ElementsAre(0, 4, 8));
  int64_t across[3];
  dataset.copy(3, 3, across);
  EXPECT_THAT(across, ElementsAre('e', 256, 't'));
}

std::string gzip(const std::string& text) {
  std::string packed(text.size() + 100, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

TEST_F(TokenFiles, PackedFilesReadAsPlainOnes) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "line " + std::to_string(i * 7919 % 10007) + "\n";
  prepare({write("plain.txt", text)});
  const std::string expected = TokenDataset(out()).fingerprint();
  const size_t half = text.size() / 2;
  for (const auto& [name, content] : {std::pair<const char*, std::string>{"a.gz", gzip(text)},
                                      {"a.zst", zstd(text)},
                                      {"two.gz", gzip(text.substr(0, half)) + gzip(text.substr(half))},
                                      {"two.zst", zstd(text.substr(0, half)) + zstd(text.substr(half))}}) {
    fs::remove_all(out());
    prepare({write(name, content)});
    EXPECT_EQ(TokenDataset(out(), true).fingerprint(), expected) << name;
  }
  fs::remove_all(out());
  EXPECT_THAT(error_of([&] { prepare({write("cut.zst", zstd(text).substr(0, 5000))}); }),
              HasSubstr("cut off"));
  EXPECT_FALSE(fs::exists(out() / "index.json"));
}

TEST_F(TokenFiles, FaultsAreNamed) {
  EXPECT_THAT(error_of([&] { prepare({write("a.jsonl", "{\"text\":\"a\"}\nnonsense\n")}); }),
              HasSubstr("a.jsonl line 2: \"nonsense\" is no JSON object"));
  EXPECT_TRUE(fs::is_empty(out()));
  EXPECT_THAT(error_of([&] { prepare({write("a.jsonl", "{\"body\":\"a\"}")}); }),
              HasSubstr("has no \"text\"; its keys: body"));
  EXPECT_THAT(error_of([&] { prepare({write("a.jsonl", "{\"text\":3}")}); }), HasSubstr("is 3, not a text"));
  EXPECT_THAT(error_of([&] { prepare({write("empty.txt", "")}); }), HasSubstr("no document"));
  EXPECT_THAT(error_of([&] { prepare({"/nonexistent"}); }), HasSubstr("no such file"));
  prepare({write("b.txt", "text")});
  EXPECT_THAT(error_of([&] { prepare({(root_ / "b.txt").string()}); }), HasSubstr("is not empty"));
}

TEST_F(TokenFiles, DamageIsFound) {
  EXPECT_THAT(error_of([&] { TokenDataset dataset(root_); }), HasSubstr("is no token folder"));
  prepare({write("a.txt", "some text")});
  std::string ids = read_file(out() / "tokens-00000.bin");
  ids[4] ^= 1;
  write_file(out() / "tokens-00000.bin", ids);
  EXPECT_THAT(error_of([&] { TokenDataset(out(), true); }), HasSubstr("was damaged or edited"));
  write_file(out() / "tokens-00000.bin", ids.substr(1));
  EXPECT_THAT(error_of([&] { TokenDataset dataset(out()); }), HasSubstr("index.json says"));
  std::string index = read_file(out() / "index.json");
  index.replace(index.find("\"format_version\": 1"), 19, "\"format_version\": 9");
  write_file(out() / "index.json", index);
  EXPECT_THAT(error_of([&] { TokenDataset dataset(out()); }), HasSubstr("newer than this program"));
  write_file(out() / "index.json", "{}");
  EXPECT_THAT(error_of([&] { TokenDataset dataset(out()); }), HasSubstr("is damaged"));
}

}  // namespace
}  // namespace prism
