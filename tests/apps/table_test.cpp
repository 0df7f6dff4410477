#include "table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"

namespace prism::cli {
namespace {

Table sample() {
  Table table({"item", "count", "share"}, 3);
  table.add({"Misérables, Les", int64_t{12345}, 0.25});
  table.add({"say \"b\"", std::monostate{}, std::nan("")});
  return table;
}

TEST(Table, TextIsAligned) {
  EXPECT_EQ(sample().to_string(TableFormat::kText),
            "item              count  share\n"
            "---------------  ------  -----\n"
            "Misérables, Les  12,345  0.250\n"
            "say \"b\"               -      -\n");
}

TEST(Table, MarkdownEscapesBars) {
  Table table({"a|b", "share"}, 2);
  table.add({"x", 0.5});
  table.add({"y|z", std::monostate{}});
  EXPECT_EQ(table.to_string(TableFormat::kMarkdown),
            "| a\\|b | share |\n|---|---|\n| x | 0.50 |\n| y\\|z | - |\n");
}

TEST(Table, CsvQuotesWhereNeeded) {
  EXPECT_EQ(sample().to_string(TableFormat::kCsv),
            "item,count,share\n\"Misérables, Les\",12345,0.25\n\"say \"\"b\"\"\",,\n");
}

TEST(Table, JsonHasNullForNothingAndSurvivesBadBytes) {
  Table table = sample();
  table.add({"caf\xE9", int64_t{1}, 1.0});
  const nlohmann::json json = nlohmann::json::parse(table.to_string(TableFormat::kJson));
  EXPECT_EQ(json[0]["count"], 12345);
  EXPECT_TRUE(json[1]["share"].is_null());
  EXPECT_EQ(json[2]["item"], "caf\xEF\xBF\xBD");
}

TEST(Table, RowsHaveEveryColumn) {
  Table table({"a", "b"});
  EXPECT_THROW(table.add({int64_t{1}}), Error);
}

}  // namespace
}  // namespace prism::cli
