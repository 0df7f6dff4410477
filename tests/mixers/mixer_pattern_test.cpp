#include "prism/mixers/mixer_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

std::string usage_message(const std::string& pattern) {
  try {
    MixerPattern given(pattern);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(MixerPattern, OneNameHasTheSectionMixer) {
  MixerPattern pattern("delta_net");
  Settings settings;
  pattern.bind(settings);
  EXPECT_NE(settings.find("mixer.heads"), nullptr);
  EXPECT_EQ(&pattern.of_block(0), &pattern.of_block(7));
}

TEST(MixerPattern, SeveralNamesRepeatAndHaveASectionEach) {
  MixerPattern pattern("prism*3, softmax_attention,prism");
  EXPECT_EQ(pattern.period(), 5);
  Settings settings;
  pattern.bind(settings);
  settings.parse_toml("[mixer.prism]\nsteps = 3\n[mixer.softmax_attention]\nheads = 4\n", "recipe");
  EXPECT_EQ(settings.find("mixer.prism.steps")->get(), Value(int64_t{3}));
  EXPECT_EQ(settings.find("mixer.prism.heads")->get(), Value(int64_t{2}));
  EXPECT_EQ(settings.find("mixer.softmax_attention.heads")->get(), Value(int64_t{4}));
  const MixerSpec *const prism = &pattern.of_block(0), *const attention = &pattern.of_block(3);
  EXPECT_NE(prism, attention);
  for (const int64_t block : {1, 2, 4, 5, 6, 7, 9}) EXPECT_EQ(&pattern.of_block(block), prism) << block;
  EXPECT_EQ(&pattern.of_block(8), attention);
}

TEST(MixerPattern, SettingsComeBackFromTomlAndJson) {
  MixerPattern pattern("mom,prism"), copy("mom,prism"), other("mom,prism");
  Settings settings, from_toml, from_json;
  pattern.bind(settings);
  copy.bind(from_toml);
  other.bind(from_json);
  settings.set("mixer.mom.memories", int64_t{3}, "test");
  from_toml.parse_toml(settings.to_toml(), "toml");
  from_json.parse_json(settings.to_json(), "json");
  EXPECT_EQ(from_toml.to_toml(), settings.to_toml());
  EXPECT_EQ(from_json.to_toml(), settings.to_toml());
}

TEST(MixerPattern, WrongPatternsAreUsageErrors) {
  EXPECT_THAT(usage_message("prism,softmax_atention"), HasSubstr("did you mean \"softmax_attention\""));
  EXPECT_THAT(usage_message("prism*0"), HasSubstr("NAME*COUNT"));
  EXPECT_THAT(usage_message("prism*two"), HasSubstr("NAME*COUNT"));
  EXPECT_THAT(usage_message("prism,"), HasSubstr("no mixer is called \"\""));
  EXPECT_EQ(usage_message("prism*2,prism"), "no error");
}

}  // namespace
}  // namespace prism
