#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/random.h"
#include "prism/core/text.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("prism-files-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }
  fs::path folder_;
};

TEST_F(Files, AtomicFileAppearsOnlyWhenCommitted) {
  write_file(folder_ / "a", "old");
  {
    AtomicFile file(folder_ / "a");
    file.write("half");
    EXPECT_EQ(read_file(folder_ / "a"), "old");
  }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(entries(), 1U) << "an abandoned file leaves nothing behind";
  AtomicFile file(folder_ / "a");
  file.write(std::string_view("new\0x", 5));
  file.commit();
  EXPECT_EQ(read_file(folder_ / "a"), std::string("new\0x", 5));
}

TEST_F(Files, WhatKilledProcessesLeftIsRemoved) {
  fs::create_directories(folder_ / "below");
  for (const char* name : {"kept", "kept.tmp-a1", "kept.tmp-", "gone.tmp-123", "below/gone.tmp-9"})
    write_file(folder_ / name, "x");
  remove_abandoned_files(folder_);
  EXPECT_EQ(entries(), 4U);
  EXPECT_FALSE(fs::exists(folder_ / "gone.tmp-123"));
  EXPECT_TRUE(fs::is_empty(folder_ / "below"));
}

TEST_F(Files, LinksAndPermissionsStay) {
  write_file(folder_ / "target", "old");
  fs::permissions(folder_ / "target", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(folder_ / "target", folder_ / "link");
  write_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "target"), "new");
  EXPECT_EQ(fs::status(folder_ / "target").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THROW(write_file(folder_, "a folder"), Error);
}

TEST(Crc32, ContinuesAndIgnoresEmptyPieces) {
  EXPECT_EQ(crc32_of("123456789", 9), 0xCBF43926U);  // the check value of CRC-32
  EXPECT_EQ(crc32_of("6789", 4, crc32_of(nullptr, 0, crc32_of("12345", 5))), 0xCBF43926U);
}

TEST_F(Files, ErrorsNameThePathAndTheReason) {
  const auto message = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { read_file(folder_ / "absent"); }), HasSubstr("absent: No such file"));
  EXPECT_THAT(message([&] { read_file(folder_); }), HasSubstr("it is a folder"));
  EXPECT_THAT(message([&] { write_file(folder_ / "no" / "x", ""); }), HasSubstr("no/x: No such file"));
  write_file(folder_ / "plain", "");
  EXPECT_THAT(message([&] { require_writable_folder(folder_ / "plain" / "sub"); }),
              HasSubstr("cannot create folder"));
  EXPECT_THAT(message([&] { require_writable_folder(folder_, INT64_MAX); }), HasSubstr("are needed"));
  EXPECT_NO_THROW(require_writable_folder(folder_ / "made" / "here", 1));
}

TEST(Random, StreamsAreIndependentAndRepeatable) {
  EXPECT_EQ(RandomStream(1, "a", 2).next(), RandomStream(1, "a", 2).next());
  std::vector<uint64_t> seeds = {stream_seed(1, "a"),    stream_seed(1, "b"), stream_seed(2, "a"),
                                 stream_seed(1, "a", 1), stream_seed(0, ""),  stream_seed(0, "a"),
                                 stream_seed(1, "ab")};
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::unique(seeds.begin(), seeds.end()), seeds.end());
}

TEST(Random, APermutationHasEveryIndexOnce) {
  for (const uint64_t size : {1, 2, 3, 5, 64, 1000, 4097}) {
    const Permutation order(size, 7, "test"), other(size, 7, "test", 1);
    std::vector<bool> seen(size);
    uint64_t same = 0;
    for (uint64_t place = 0; place < size; ++place) {
      const uint64_t index = order(place);
      ASSERT_LT(index, size);
      EXPECT_FALSE(seen[index]);
      seen[index] = true;
      same += index == other(place);
    }
    EXPECT_LT(same, size / 10 + 4) << size;
  }
}

TEST(Random, BelowIsUniformAndShuffleIsAPermutation) {
  RandomStream stream(7, "test");
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts[stream.below(10)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  std::vector<int> values(100), sorted(100);
  std::iota(values.begin(), values.end(), 0);
  sorted = values;
  stream.shuffle(std::span(values));
  EXPECT_NE(values, sorted);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, sorted);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) sum += stream.uniform();
  EXPECT_NEAR(sum / 100000, 0.5, 0.01);
}

TEST(Text, NumbersAndNames) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(-1234), "-1,234");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(3 << 20), "3.0 MiB");
  EXPECT_EQ(format_duration(0.84), "0.8s");
  EXPECT_EQ(format_duration(75), "1m 15s");
  EXPECT_EQ(format_duration(3720), "1h 02m");
  EXPECT_EQ(shortened("a\nb"), "a\\x0ab");
  EXPECT_EQ(shortened("ééé", 3), "é...") << "cut at a character's edge";
  const std::vector<std::string> names = {"heads", "width"};
  EXPECT_EQ(nearest_name("haeds", names), "heads");
  EXPECT_EQ(nearest_name("completely", names), "");
}

}  // namespace
}  // namespace prism
