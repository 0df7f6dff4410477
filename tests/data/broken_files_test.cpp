// The files of rec/broken and the outcomes of its expected.json.
#include <gmock/gmock.h>

#include <map>

#include "data_test_util.h"
#include "prism/data/split.h"

namespace prism {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Orders = std::map<std::string, std::vector<std::string>>;

Orders orders(const nlohmann::json& want, const char* key) {
  return want.contains(key) ? want[key].get<Orders>() : Orders{};
}

class BrokenFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "skipped: " << folder_ << " is absent";
    expected_ = read_json(folder_ / "expected.json");
  }
  DataConfig config(const std::string& name) const { return config_for((folder_ / name).string()); }

  // Counts, order and test targets of expected.json.
  void expect_as_expected(const DataConfig& settings, const std::string& name) const {
    SCOPED_TRACE(name);
    const nlohmann::json& want = expected_[name];
    const Interactions log = read(settings);
    EXPECT_EQ(log.users.size(), want["users"]);
    EXPECT_EQ(log.items.size(), want["items"]);
    EXPECT_EQ(log.size(), want["interactions"]);
    for (const auto& [user, items] : orders(want, "order")) EXPECT_EQ(ids(log, user), items) << user;
    const Split split(log, settings);
    std::map<std::string, std::string> targets;
    for (const Case& c : split.cases(Part::kTest))
      targets[std::string(log.users.name(c.user))] = log.items.name(c.target);
    for (const auto& [user, item] : want.value("last_item", std::map<std::string, std::string>{}))
      EXPECT_EQ(targets[user], item) << user;
    EXPECT_EQ(targets.size(), want.value("users_evaluated", targets.size()));
  }

  std::filesystem::path folder_ = shared_rec() / "broken";
  nlohmann::json expected_;
};

TEST_F(BrokenFiles, ReadsTheRecoverableOnes) {
  for (const char* name :
       {"01_crlf.csv", "02_bom.csv", "04_semicolon.csv", "06_quoted.csv", "07_ids_19_digits.csv",
        "08_float_timestamps.csv", "09_nanosecond_timestamps.csv", "10_negative_zero_timestamp.csv",
        "11_empty_lines.csv", "13_short_users.csv", "14_seen_everything.csv", "17_huge_line.txt"})
    expect_as_expected(config(name), name);
}

TEST_F(BrokenFiles, ReportsWhatWasUnusual) {
  ReadReport report;
  read_interactions(config("01_crlf.csv"), report);
  EXPECT_EQ(report.time, "timestamp");
  read_interactions(config("02_bom.csv"), report);
  EXPECT_EQ(report.user, "user_id");
  EXPECT_EQ(report.encoding, "UTF-8 with byte order mark");
  read_interactions(config("04_semicolon.csv"), report);
  EXPECT_EQ(report.separator, "semicolon");
  read_interactions(config("10_negative_zero_timestamp.csv"), report);
  EXPECT_EQ(report.negative_times, 3);
  EXPECT_EQ(report.tied_pairs, 2);
  read_interactions(config("11_empty_lines.csv"), report);
  EXPECT_EQ(report.blank_lines, 6);
  EXPECT_EQ(report.lines, 17);
  read_interactions(config("17_huge_line.txt"), report);
  EXPECT_EQ(report.format, "sequences");
}

TEST_F(BrokenFiles, HeaderlessTableNamesTheOption) {
  const DataConfig settings = config("05_no_header.csv");
  EXPECT_THAT(read_error(settings), AllOf(HasSubstr("line 1"), HasSubstr("1,1,10"),
                                          HasSubstr("looks like data"), HasSubstr("--no-header")));
  DataConfig with_option = settings;
  with_option.header = false;
  expect_as_expected(with_option, "05_no_header.csv");
  const Interactions log = read(with_option);
  EXPECT_EQ(log.items.name(log.history(log.users.find("1"))[0]), "1");
}

TEST_F(BrokenFiles, TruncatedGzipIsAnError) {
  EXPECT_THAT(read_error(config("12_truncated.csv.gz")),
              AllOf(HasSubstr("12_truncated.csv.gz"), HasSubstr("ends too early")));
}

TEST_F(BrokenFiles, ShortUsersTrainAndAreCounted) {
  const DataConfig settings = config("13_short_users.csv");
  const Interactions log = read(settings);
  const Split split(log, settings);
  EXPECT_EQ(split.users_not_evaluated(), 2);
  EXPECT_EQ(split.train(log.users.find("duo")).size(), 2U);
  EXPECT_THAT(split.summary(), HasSubstr("2 users with fewer than 3 interactions"));
}

TEST_F(BrokenFiles, DuplicatesAreCountedAndDroppedOnRequest) {
  DataConfig settings = config("15_duplicates.csv");
  const nlohmann::json& want = expected_["15_duplicates.csv"];
  for (const DuplicateRule rule : {DuplicateRule::kKeep, DuplicateRule::kDropExact}) {
    settings.duplicates = rule;
    const bool keep = rule == DuplicateRule::kKeep;
    ReadReport report;
    const Interactions log = read_interactions(settings, report);
    EXPECT_EQ(report.exact_duplicates, 2);
    EXPECT_EQ(log.size(), want[keep ? "interactions_as_is" : "interactions_without_exact_duplicates"]);
    for (const auto& [user, items] : orders(want, keep ? "order_as_is" : "order_without_exact_duplicates"))
      EXPECT_EQ(ids(log, user), items) << user;
    EXPECT_THAT(report.text(),
                ::testing::Contains(HasSubstr(
                    keep ? "2 rows repeat user, item and timestamp of an earlier one: kept" : "dropped")));
  }
}

TEST_F(BrokenFiles, NulByteIsAnErrorWithItsLine) {
  EXPECT_THAT(read_error(config("16_nul_byte.csv")), AllOf(HasSubstr("line 6"), HasSubstr("NUL byte")));
}

}  // namespace
}  // namespace prism
