// Input that must stop with a message that says where and what to do.
#include <gmock/gmock.h>

#include "data_test_util.h"

namespace prism {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BadInput {
  const char* name;
  std::string content;
  std::vector<const char*> message;  // parts of it
  void (*change)(DataConfig&) = [](DataConfig&) {};
  const char* file = "log.csv";
};

std::string many_columns(int count) {
  std::string header = "user_id,item_id";
  for (int i = 0; i < count; ++i) header += ",c" + std::to_string(i);
  return header + "\nu,i\n";
}

using namespace std::string_literals;

const std::vector<BadInput> kCases = {
    {"empty file", "", {"is empty"}},
    {"blank lines only", "\n  \n\n", {"is empty"}},
    {"only a header", "user_id,item_id\n", {"is empty", "a header and no rows"}},
    {"no item column",
     "user_id,thing,timestamp\nu,i,1\n",
     {"line 1", "no item column", "user_id thing timestamp", "--item-column"}},
    {"unknown column name",
     "user_id,item_id,stamp\nu,i,1\n",
     {"no column \"stmap\"", "--time-column", "did you mean \"stamp\"?"},
     [](DataConfig& config) { config.time_column = "stmap"; }},
    {"one column", "user_id\nu\n", {"line 1", "1 field (\"user_id\")", "expected"}},
    {"date as timestamp",
     "user_id,item_id,timestamp\nu,a,1612137600\nu,b,2021-05-13\n",
     {"line 3",
      "timestamp \"2021-05-13\" is not a number; dates need --time-format iso (first rows: 1612137600, "
      "...)"}},
    {"wrong date",
     "user_id,item_id,date\nu,a,2021-02-28\nu,b,2021-02-30\n",
     {"line 3", "date \"2021-02-30\" does not match --time-format iso"},
     [](DataConfig& config) { config.time_format = "iso"; }},
    {"timestamp above 64 bits",
     "user_id,item_id,timestamp\nu,a,9223372036854775807\nu,a,9223372036854775808\n",
     {"line 3", "\"9223372036854775808\" does not fit into 64 bits"}},
    {"timestamps that do not fit together",
     "user_id,item_id,timestamp\nu,a,9223372036854775807\nu,a,0.5\n",
     {"line 3", "timestamp", "64 bits", "round the column"}},
    {"empty timestamp", "user_id,item_id,timestamp\nu,a,\n", {"line 2", "timestamp \"\" is not a number"}},
    {"ragged row",
     "user_id,item_id,timestamp\nu,a,1\nu,b,1,x\n",
     {"line 3", "4 fields (\"u,b,1,x\")", "expected 3", "user_id item_id timestamp"}},
    {"short row after an embedded line break", "user_id,item_id\n\"u\n1\",a\nu\n", {"line 4", "1 field"}},
    {"row far below its columns", many_columns(5000), {"line 2", "2 fields", "expected 5002"}},
    {"empty id", "user_id,item_id\nu,\n", {"line 2", "item_id is empty"}},
    {"blank id", "user_id,item_id\n  ,i\n", {"line 2", "user_id is empty"}},
    {"open quote", "user_id,item_id\nu,\"a\nu,b\nu,c\n", {"line 2", "never closed"}},
    {"text after a quote", "user_id,item_id\nu,\"a\"b\n", {"line 2", "after the closing quote", "\"a\""}},
    {"binary file",
     "\x7f"
     "ELF\x02\x01\x01\0\0\0user_id,item_id\n"s,
     {"line 1", "NUL byte", "binary"}},
    {"UTF-16 with half a pair",
     "\xFF\xFEu\0,\0i\0\n\0a\0,\0\x3D\xD8\n\0"s,
     {"not UTF-16", "half of a surrogate pair"}},
    {"UTF-16 without mark", "u\0s\0e\0r\0,\0i\0t\0e\0m\0\n\0"s, {"line 1", "NUL byte", "--encoding utf16"}},
    {"not UTF-8 though told so",
     "user_id,item_id\nu,a\nu,caf\xE9\n",
     {"line 3", "0xE9 is not UTF-8", "--encoding latin1"},
     [](DataConfig& config) { config.encoding = Encoding::kUtf8; }},
    {"UTF-8 and Latin-1 mixed",
     "user_id,item_id\nu,caf\xC3\xA9\nu,caf\xE9\n",
     {"line 3", "--encoding latin1"}},
    {"CR line ends", "user_id,item_id\ru,a\ru,b\r", {"CR alone"}},
    {"headerless semicolons", "1;2;3\n1;3;4\n", {"line 1", "\"1;2;3\"", "semicolon", "--no-header"}},
    {"movies style without header", "1::10::5::978300760\n1::11::4::978300761\n", {"line 1", "--no-header"}},
    {"wrong number of --columns",
     "1,2,3\n",
     {"line 1", "3 columns", "--columns names 2"},
     [](DataConfig& config) {
       config.header = false;
       config.columns = {"user", "item"};
     }},
    {"rating is no number",
     "user_id,item_id,rating\nu,a,5\nu,b,good\n",
     {"line 3", "rating \"good\" is not a number"},
     [](DataConfig& config) { config.min_rating = 3; }},
    {"min_rating without rating",
     "user_id,item_id\nu,a\n",
     {"no rating column", "--rating-column"},
     [](DataConfig& config) { config.min_rating = 3; }},
    {"no row of the events",
     "user_id,item_id,event\nu,a,view\n",
     {"none of the 1 rows was selected"},
     [](DataConfig& config) { config.events = {"buy"}; }},
    {"inter without types",
     "user_id\titem_id\nu\ta\n",
     {"line 1", "name:type"},
     [](DataConfig&) {},
     "log.inter"},
    {"user without items",
     "1 2 3\n2\n",
     {"line 2", "1 field (\"2\")", "user item"},
     [](DataConfig&) {},
     "log.txt"},
    {"table of blanks without header",
     "1 10 1612137600\n1 11 1612137601\n2 10 1612137602\n",
     {"every line has 3 fields", "--no-header", "--format sequences"},
     [](DataConfig&) {},
     "log.txt"},
    {"three fields as pairs",
     "1 2\n1 2 3\n",
     {"line 2", "3 fields", "expected \"user item\""},
     [](DataConfig& config) { config.format = LogFormat::kPairs; },
     "log.txt"},
    {"zip archive", "PK\x03\x04rest", {"zip archive", "unpack it first"}},
    {"damaged gzip",
     "\x1f\x8b\x08\0garbage that is no deflate stream"s,
     {"damaged"},
     [](DataConfig&) {},
     "log.csv.gz"},
    {"nothing left",
     "user_id,item_id\nu,a\n",
     {"nothing is left", "min_user = 2"},
     [](DataConfig& config) { config.min_user = 2; }},
};

TEST(BadInput, StopsWithAMessageThatHelps) {
  for (const BadInput& bad : kCases) {
    SCOPED_TRACE(bad.name);
    const TempFile file(bad.file, bad.content);
    DataConfig config = config_for(file.path());
    bad.change(config);
    const std::string message = read_error(config);
    EXPECT_THAT(message, HasSubstr(file.path()));
    for (const char* part : bad.message) EXPECT_THAT(message, HasSubstr(part));
    EXPECT_LT(message.size(), 600U) << "offending text must be shortened";
  }
}

TEST(BadInput, FoldersAndMissingFiles) {
  EXPECT_THAT(read_error(config_for(::testing::TempDir())), HasSubstr("it is a folder"));
  EXPECT_THAT(read_error(config_for("/nowhere/log.csv")),
              AllOf(HasSubstr("/nowhere/log.csv"), HasSubstr("No such file")));
  EXPECT_THAT(read_error(DataConfig{}), HasSubstr("no interactions file"));
}

TEST(BadInput, ErrorsFarIntoAFileNameTheirLine) {
  std::string content = "user_id,item_id,timestamp\n";
  for (int i = 0; i < 300'000; ++i)
    content += "user,item" + std::to_string(i % 100) + "," + std::to_string(i) + "\n";
  const TempFile file("long.csv", content + "user,item,soon\n");
  EXPECT_THAT(read_error(config_for(file.path())), HasSubstr("line 300,002: timestamp \"soon\""));
}

}  // namespace
}  // namespace prism
