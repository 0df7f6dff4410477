#include "prism/core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"

namespace prism {

enum class Fruit { kApple, kPear };
template <>
struct EnumNames<Fruit> {
  static constexpr std::array names{"apple", "pear"};
};

namespace {

using ::testing::HasSubstr;

struct Sample {
  int64_t heads = 2;
  double rate = 0.1;
  bool tied = true;
  std::string name = "x";
  Fruit fruit = Fruit::kApple;
  std::vector<int64_t> ks = {10, 20};
  static constexpr auto fields = std::tuple{Field{"heads", &Sample::heads, Range{1, 64}, "", "heads"},
                                            Field{"rate", &Sample::rate, Range{0, 1}, "", "rate"},
                                            Field{"tied", &Sample::tied, Any{}, "", "tied"},
                                            Field{"name", &Sample::name, Any{}, "", "name"},
                                            Field{"fruit", &Sample::fruit, Any{}, "", "fruit"},
                                            Field{"ks", &Sample::ks, Range{1, 1000}, "", "ks"}};
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Settings, TomlRoundTripKeepsEveryValue) {
  Sample first{
      .heads = 7, .rate = 1e-4, .tied = false, .name = "a \"b\" é", .fruit = Fruit::kPear, .ks = {1}},
      second;
  Settings a, b;
  a.bind("s", first);
  b.bind("s", second);
  b.parse_toml(a.to_toml(), "copy");
  EXPECT_EQ(a.to_toml(), b.to_toml());
  EXPECT_EQ(second.name, first.name);
  EXPECT_EQ(second.fruit, Fruit::kPear);
  Sample third;
  Settings c;
  c.bind("s", third);
  c.parse_json(a.to_json(), "json");
  EXPECT_EQ(c.to_toml(), a.to_toml());
}

TEST(Settings, TextSetsEveryType) {
  Sample sample;
  Settings settings;
  settings.bind("s", sample);
  settings.set_text("heads", "5", "--heads");
  settings.set_text("s.rate", "0.5", "--rate");
  settings.set_text("tied", "false", "--tied");
  settings.set_text("fruit", "pear", "--fruit");
  settings.set_text("ks", "1,2,3", "--ks");
  EXPECT_EQ(sample.heads, 5);
  EXPECT_EQ(sample.rate, 0.5);
  EXPECT_FALSE(sample.tied);
  EXPECT_EQ(sample.fruit, Fruit::kPear);
  EXPECT_EQ(sample.ks, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(settings.is_assigned("ks"));
  EXPECT_FALSE(settings.is_assigned("s.name"));
}

TEST(Settings, ErrorsNameTheKeyTheValueAndTheNearestName) {
  Sample sample;
  Settings settings;
  settings.bind("s", sample);
  EXPECT_THAT(error_of([&] { settings.set_text("haeds", "1", "--haeds"); }),
              HasSubstr("did you mean \"heads\"?"));
  EXPECT_THAT(error_of([&] { settings.set_text("heads", "65", "--heads"); }),
              HasSubstr("heads = 65 is outside 1..64"));
  EXPECT_THAT(error_of([&] { settings.set_text("heads", "two", "--heads"); }), HasSubstr("\"two\""));
  EXPECT_THAT(error_of([&] { settings.set_text("fruit", "aple", "--fruit"); }),
              HasSubstr("did you mean \"apple\"?"));
  EXPECT_THAT(error_of([&] { settings.parse_toml("[s]\n\nrates = 1\n", "r.toml"); }),
              HasSubstr("r.toml line 3"));
  EXPECT_THAT(error_of([&] { settings.parse_toml("[s]\nheads = 'x'", "r.toml"); }),
              HasSubstr("heads takes integer"));
  EXPECT_THAT(error_of([&] { settings.parse_toml("[s\n", "r.toml"); }), HasSubstr("r.toml line"));
  EXPECT_THAT(error_of([&] { settings.set_text("rate", "nan", "--rate"); }), HasSubstr("outside 0..1"));
  EXPECT_EQ(sample.heads, 2) << "a refused value changes nothing";
}

}  // namespace
}  // namespace prism
