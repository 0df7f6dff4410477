#include "prism/data/titles.h"

#include <gmock/gmock.h>

#include "data_test_util.h"

namespace prism {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Vocabulary items_called(const std::vector<std::string>& names) {
  Vocabulary items;
  for (const std::string& name : names) items.add(name);
  return items;
}

DataConfig titles_config(const std::string& file) {
  DataConfig config;
  config.titles = file;
  return config;
}

TEST(Titles, TableWithHeaderKnowsSomeItems) {
  const TempFile file("titles.csv", "title,item_id,year\n\"Misérables, Les\",m1,1995\nOther,m9,1990\n");
  const Titles titles = read_titles(titles_config(file.path()), items_called({"m0", "m1"}));
  EXPECT_EQ(titles.of(0), "");
  EXPECT_EQ(titles.of(1), "Misérables, Les");
  EXPECT_EQ(titles.known(), 1);
}

TEST(Titles, AQuoteInsideAnUnquotedFieldIsText) {
  const TempFile file("titles.tsv", "item_id\ttitle\nm0\t5\" disc\nm1\tPlain\nm2\t7\" disc\n");
  const Titles titles = read_titles(titles_config(file.path()), items_called({"m0", "m1", "m2"}));
  EXPECT_EQ(titles.of(0), "5\" disc");
  EXPECT_EQ(titles.of(1), "Plain");
  EXPECT_EQ(titles.of(2), "7\" disc");
}

TEST(Titles, MoviesDatThroughAMap) {
  const TempFile movies("movies.dat", "1::Toy Story (1995)::Animation|Comedy\n2::Heat, The::Crime\n");
  const TempFile map("map.txt", "a 2\nb 1\nc 2\n");
  DataConfig config = titles_config(movies.path());
  config.titles_map = map.path();
  const Titles titles = read_titles(config, items_called({"a", "b", "c", "d"}));
  EXPECT_EQ(titles.of(0), "Heat, The");
  EXPECT_EQ(titles.of(1), "Toy Story (1995)");
  EXPECT_EQ(titles.of(2), "Heat, The");
  EXPECT_EQ(titles.of(3), "");
}

TEST(Titles, NoneWithoutAFile) {
  const Titles titles = read_titles(DataConfig{}, items_called({"a"}));
  EXPECT_TRUE(titles.empty());
  EXPECT_EQ(titles.of(0), "");
}

TEST(Titles, AFileThatIsNoTableIsAnError) {
  const TempFile file("titles.txt", "just words\n");
  EXPECT_THAT(error_of([&] { read_titles(titles_config(file.path()), items_called({"a"})); }),
              AllOf(HasSubstr("line 1"), HasSubstr("no item and title column")));
}

class SharedTitles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(shared_rec())) GTEST_SKIP() << "skipped: " << shared_rec() << " is absent";
  }
};

TEST_F(SharedTitles, Latin1GivesOneWarningOrNoneWhenConfirmed) {
  const nlohmann::json want =
      read_json(shared_rec() / "broken/expected.json")["03_latin1_titles.tsv"]["titles_utf8"];
  const auto wanted = want.get<std::map<std::string, std::string>>();
  DataConfig config = titles_config((shared_rec() / "broken/03_latin1_titles.tsv").string());
  for (const Encoding encoding : {Encoding::kAuto, Encoding::kLatin1}) {
    config.encoding = encoding;
    const Vocabulary items = items_called({"m1", "m2", "m3", "m4"});
    ::testing::internal::CaptureStderr();
    const Titles titles = read_titles(config, items);
    const std::string messages = ::testing::internal::GetCapturedStderr();
    for (const auto& [item, title] : wanted) EXPECT_EQ(titles.of(items.find(item)), title);
    if (encoding == Encoding::kAuto) {
      EXPECT_THAT(messages, AllOf(HasSubstr("03_latin1_titles.tsv line 2"), HasSubstr("Latin-1")));
    } else {
      EXPECT_EQ(messages, "");
    }
  }
}

TEST_F(SharedTitles, EveryMovieHasOne) {
  DataConfig config = config_for((shared_rec() / "ml-100k.inter").string());  // finds ml-100k.item beside it
  const Interactions small = read(config);
  const Titles titles = read_titles(config, small.items);
  EXPECT_EQ(titles.known(), 1682);
  EXPECT_EQ(titles.of(small.items.find("1")), "Toy Story");
  config = config_for((shared_rec() / "ml-1m.txt.gz").string());
  config.titles = (shared_rec() / "ml-1m.movies.dat").string();
  config.titles_map = (shared_rec() / "ml-1m.item_ids.txt").string();
  config.encoding = Encoding::kLatin1;
  EXPECT_EQ(read_titles(config, read(config).items).known(), 3416);
}

}  // namespace
}  // namespace prism
