#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "train/append_file.h"
#include "train/event_records.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

fs::path fresh(const std::string& name) {
  const fs::path path = fs::path(testing::TempDir()) / ("prism-logs-" + name);
  fs::remove_all(path);
  return path;
}

TEST(AppendFile, CutsWhatCameAfterTheRememberedSize) {
  const fs::path path = fresh("cut");
  int64_t remembered = 0;
  {
    AppendFile file(path, 0);
    file.append("one\n");
    remembered = file.size();
    file.append("two, lost\n");
  }
  AppendFile file(path, remembered);
  file.append("two\n");
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  EXPECT_EQ(file.size(), 8);
}

TEST(AppendFile, AShorterFileIsContinuedAndAMissingFolderIsAnError) {
  const fs::path path = fresh("short");
  AppendFile file(path, 100);
  file.append("x");
  EXPECT_EQ(read_file(path), "x");
  EXPECT_THROW(AppendFile("/nonexistent/folder/file", 0), Error);
}

TEST(EventRecords, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);            // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
}

TEST(EventRecords, FrameHoldsLengthAndMessage) {
  const Scalar scalar{"loss", 1.5};
  const std::string record = scalar_event(2.0, 300, {&scalar, 1});
  uint64_t length = 0;
  std::memcpy(&length, record.data(), 8);
  ASSERT_EQ(record.size(), 8 + 4 + length + 4);
  const std::string message = record.substr(12, length);
  const std::string expected("\x09\0\0\0\0\0\0\0\x40\x10\xAC\x02\x2A\x0D\x0A\x0B\x0A\x04loss\x15\0\0\xC0\x3F",
                             27);
  EXPECT_EQ(message, expected);
}

}  // namespace
}  // namespace prism
