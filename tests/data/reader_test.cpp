// Good input in all its forms.
#include <gmock/gmock.h>

#include "data_test_util.h"
#include "prism/core/files.h"
#include "prism/data/summary.h"
#include "prism/data/titles.h"

namespace prism {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Interactions read_text(const std::string& content, const std::function<void(DataConfig&)>& change = {},
                       const std::string& name = "log.csv") {
  const TempFile file(name, content);
  DataConfig config = config_for(file.path());
  if (change) change(config);
  return read(config);
}

void append_little(std::string& out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

// One stored block in a gzip member (RFC 1951 and 1952).
std::string gzipped(const std::string& text) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11);
  const auto size = static_cast<uint32_t>(text.size());
  append_little(out, size, 2);
  append_little(out, ~size, 2);
  out += text;
  append_little(out, crc32_of(text.data(), text.size()), 4);
  append_little(out, size, 4);
  return out;
}

std::string utf16(const std::string& ascii, bool big) {
  std::string out = big ? "\xFE\xFF" : "\xFF\xFE";
  for (const char c : ascii) {
    const char pair[] = {big ? '\0' : c, big ? c : '\0'};
    out.append(pair, 2);
  }
  return out;
}

const std::string kPlain = "user_id,item_id,timestamp\nu1,b,2\nu2,a,1\nu1,a,1\n";

TEST(Reader, OrdersByTimeAndIndexesByFirstAppearance) {
  const Interactions log = read_text(kPlain);
  EXPECT_EQ(log.users.find("u1"), 0);
  EXPECT_EQ(log.items.find("b"), 0);
  EXPECT_EQ(log.items.find("a"), 1);
  EXPECT_THAT(ids(log, "u1"), ElementsAre("a", "b"));
  EXPECT_THAT(log.times(0), ElementsAre(1, 2));
}

TEST(Reader, SameLogInEveryWrapping) {
  const auto same = [](const std::string& content, const std::string& name) {
    SCOPED_TRACE(name);
    EXPECT_THAT(ids(read_text(content, {}, name), "u1"), ElementsAre("a", "b"));
  };
  same(gzipped(kPlain), "gzip named csv");
  same(gzipped(kPlain.substr(0, 30)) + gzipped(kPlain.substr(30)), "two members.csv.gz");
  same(utf16(kPlain, false), "little.csv");
  same(utf16(kPlain, true), "big.csv");
  same("userId::movieId::timestamp\nu1::b::2\nu1::a::1\n", "colons.dat");
  same("User ID|Item ID|Time\nu1|b|2\nu1|a|1\n", "bars.txt");
  same("user_id item_id timestamp\nu1 b 2\nu1  a 1\n", "blanks.txt");
  same("user_id:token\titem_id:token\ttimestamp:float\nu1\tb\t2.0\nu1\ta\t1.0\n", "log.inter");
  same("u1 a\nu1 b\n", "pairs.txt");
  same("u1\ta\t b\nu2 c\n", "sequences.txt");
}

TEST(Reader, ColumnsByNameByPositionAndWithoutHeader) {
  const std::string odd = "when,who,what\n2,u1,b\n1,u1,a\n";
  EXPECT_THAT(ids(read_text(odd,
                            [](DataConfig& c) {
                              c.user_column = "who", c.item_column = "what", c.time_column = "when";
                            }),
                  "u1"),
              ElementsAre("a", "b"));
  const std::string bare = "2,u1,b\n1,u1,a\n";
  EXPECT_THAT(ids(read_text(bare,
                            [](DataConfig& c) {
                              c.header = false, c.columns = {"time", "user", "item"};
                            }),
                  "u1"),
              ElementsAre("a", "b"));
  EXPECT_THAT(ids(read_text("1::7::5::20\n1::8::5::10\n", [](DataConfig& c) { c.header = false; }), "1"),
              ElementsAre("8", "7"));
  EXPECT_THAT(ids(read_text(kPlain, [](DataConfig& c) { c.time_column = "none"; }), "u1"),
              ElementsAre("b", "a"));
}

TEST(Reader, AHeaderLongerThanTheHeadIsRead) {
  std::string header = "user_id,item_id", row = "u1,a";
  for (int i = 0; i < 20000; ++i) header += ",column" + std::to_string(i), row += ",0";
  EXPECT_THAT(ids(read_text(header + "\n" + row + "\n"), "u1"), ElementsAre("a"));
}

TEST(Reader, IdsAreTextAndUsersAreNotItems) {
  const Interactions log = read_text("user_id,item_id\n007, x \n7,007\n");
  EXPECT_EQ(log.users.size(), 2);
  EXPECT_EQ(log.items.size(), 2);
  EXPECT_EQ(log.items.find(" x "), 0);
}

TEST(Reader, SelectsRowsByRatingAndEventButIndexesTheWholeFile) {
  const std::string text = "user_id,item_id,rating,event\nu,low,1,view\nu,b,+4,buy\nu,a,5,view\n";
  ReadReport report;
  const TempFile file("log.csv", text);
  DataConfig config = config_for(file.path());
  config.min_rating = 3.5;
  Interactions log = read_interactions(config, report);
  EXPECT_THAT(ids(log, "u"), ElementsAre("b", "a"));
  EXPECT_EQ(log.items.size(), 2);
  EXPECT_EQ(report.below_min_rating, 1);
  config.events = {"view", "cart"};
  log = read_interactions(config, report);
  EXPECT_THAT(ids(log, "u"), ElementsAre("a"));
  EXPECT_THAT(report.text(), Contains(HasSubstr("1 row with other events dropped")));
}

TEST(Reader, AColumnOfTitlesIsNotDroppedInSilence) {
  const TempFile file("log.csv", "user_id,item_id,title,timestamp\nu,a,Alien,1\nu,b,Brazil,2\n");
  ReadReport report;
  DataConfig config = config_for(file.path());
  read_interactions(config, report);
  EXPECT_EQ(report.title, "title");
  EXPECT_THAT(report.text(), Contains(HasSubstr("--titles " + file.path() + " reads them")));
  config.titles = file.path();
  const Interactions log = read_interactions(config, report);
  EXPECT_THAT(report.text(), ::testing::Not(Contains(HasSubstr("titles"))));
  EXPECT_EQ(read_titles(config, log.items).of(log.items.find("b")), "Brazil");
}

TEST(Reader, DatesAndFractions) {
  const auto times = [](const std::string& rows, const std::string& format) {
    const Interactions log =
        read_text("user_id,item_id,timestamp\n" + rows, [&](DataConfig& c) { c.time_format = format; });
    std::vector<std::string> texts;
    for (const int64_t time : log.time) texts.push_back(time_text(time, log.time_decimals));
    return texts;
  };
  EXPECT_THAT(times("u,a,1970-01-02\nu,b,1970-01-02T00:00:01.250Z\nu,c,1970-01-02 02:00+01:30\n", "iso"),
              ElementsAre("86400", "86401.25", "88200"));
  EXPECT_THAT(times("u,a,02.01.1970\n", "%d.%m.%Y"), ElementsAre("86400"));
  EXPECT_THAT(times("u,a,-0.5\nu,b,1e3\nu,c,-9223372036854775\nu,d,+7\nu,e,0e99\n", ""),
              ElementsAre("-9223372036854775", "-0.5", "0", "7", "1000"));
  EXPECT_THAT(times("u,a,9223372036854775807\nu,b,-9223372036854775808\n", ""),
              ElementsAre("-9223372036854775808", "9223372036854775807"));
}

TEST(Reader, Latin1IsConvertedAndReported) {
  ReadReport report;
  const TempFile file("log.csv", "user_id,item_id\nu,plain\nu,caf\xE9\n");
  ::testing::internal::CaptureStderr();
  const Interactions log = read_interactions(config_for(file.path()), report);
  const std::string messages = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.items.find("caf\xC3\xA9"), 1);
  EXPECT_EQ(report.encoding, "Latin-1");
  EXPECT_EQ(report.first_bad_line, 3);
  EXPECT_THAT(messages, HasSubstr("line 3 is not UTF-8"));
}

TEST(Reader, ReportsInOneLineWhatItRead) {
  ReadReport report;
  const TempFile file("log.tsv", "user_id\titem_id\ttimestamp\nu\ta\t1\n\nu\tb\t1\n");
  read_interactions(config_for(file.path()), report);
  EXPECT_THAT(report.text(),
              ElementsAre("read 2 rows: tab-separated, UTF-8, columns user_id item_id timestamp",
                          "1 blank line skipped", "1 pair of neighbours with equal timestamps"));
}

TEST(Reader, BlocksJoinSeamlessly) {
  // Several blocks, quoted line breaks wherever they are cut, users spread over all of them.
  std::string text = "user_id,item_id,timestamp\r\n";
  constexpr int kRows = 200'000;
  for (int i = 0; i < kRows; ++i)
    text += "user" + std::to_string(i % 7) + ",\"item\n\"\"" + std::to_string(i % 1000) + "\"," +
            std::to_string(kRows - i) + "\r\n";
  const Interactions log = read_text(text);
  EXPECT_EQ(log.size(), kRows);
  EXPECT_EQ(log.users.size(), 7);
  EXPECT_EQ(log.items.size(), 1000);
  EXPECT_EQ(log.items.name(999), "item\n\"999");
  for (int user = 0; user < 7; ++user)
    EXPECT_TRUE(std::is_sorted(log.times(user).begin(), log.times(user).end()));
}

TEST(Reader, FilterKeepsTheOrderOfIndices) {
  const Interactions log =
      read_text("user_id,item_id\nu1,rare\nu1,b\nu1,a\nu2,a\nu2,b\nu3,b\n", [](DataConfig& c) {
        c.min_user = 2;
        c.min_item = 2;
      });
  EXPECT_EQ(log.users.size(), 2);
  EXPECT_EQ(log.items.name(0), "b");
  EXPECT_EQ(log.items.name(1), "a");
  EXPECT_THAT(ids(log, "u1"), ElementsAre("b", "a"));
}

TEST(Summary, CountsLengthsRepeatsAndTies) {
  const LogCounts counts =
      count_log(read_text("user_id,item_id,timestamp\nu,a,1\nu,a,1\nu,b,2\nu,a,3\nv,a,9\n"));
  EXPECT_EQ(counts.interactions, 5);
  EXPECT_EQ(counts.length_min, 1);
  EXPECT_EQ(counts.length_max, 4);
  EXPECT_EQ(counts.length_median, 2.5);
  EXPECT_EQ(counts.repeated_user_item_rows, 2);
  EXPECT_EQ(counts.immediate_repeats, 1);
  EXPECT_EQ(counts.users_with_a_tie, 1);
  EXPECT_EQ(counts.users_tie_between_last_two, 0);
  EXPECT_EQ(counts.time_max, 9);
}

TEST(Vocabulary, KeepsManyNamesApartAndSurvivesItsFile) {
  Vocabulary names;
  for (int i = 0; i < 50'000; ++i) EXPECT_EQ(names.add("name" + std::to_string(i * 7)), i);
  for (const char* odd : {"", "back\\slash", "two\nlines", "cr\r", "\\n"}) names.add(odd);
  EXPECT_EQ(names.add("name7"), 1);
  EXPECT_EQ(names.find("name8"), -1);
  const TempFile file("names.txt", "");
  names.save(file.path());
  const Vocabulary loaded = Vocabulary::load(file.path());
  ASSERT_EQ(loaded.size(), names.size());
  for (int64_t i = 0; i < names.size(); ++i) ASSERT_EQ(loaded.name(i), names.name(i));
  const TempFile twice("twice.txt", "a\nb\na\n");
  EXPECT_THAT(error_of([&] { Vocabulary::load(twice.path()); }), HasSubstr("line 3"));
}

}  // namespace
}  // namespace prism
