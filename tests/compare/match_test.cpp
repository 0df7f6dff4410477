#include "prism/compare/match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

ModelSpec model(const std::string& mixer, int64_t width = 64) {
  ModelSpec spec(mixer);
  spec.model.width = width;
  spec.model.max_length = 50;
  return spec;
}

TEST(Match, CountsWhatAModelHas) {
  for (const std::string& mixer : mixer_names()) {
    const ModelSpec spec = model(mixer, 16);
    const Recommender built(spec, 100, 1);
    int64_t parameters = 0;
    for (const auto& parameter : built.parameters()) parameters += parameter.numel();
    const ParameterCount count = count_parameters(spec, 100);
    EXPECT_EQ(count.total, parameters) << mixer;
    EXPECT_EQ(count.items, 1600) << mixer;
  }
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, GetsTheParametersOfPrismOnARealLog) {
  const ParameterCount wanted = count_parameters(model("prism"), 1682);
  ModelSpec spec = model(GetParam());
  const MatchedBy by = match_parameters(spec, 1682, wanted, 0.03, GetParam());
  const ParameterCount found = count_parameters(spec, 1682);
  const auto near = [](int64_t a, int64_t b) { return std::abs(a - b) <= 0.03 * static_cast<double>(b); };
  EXPECT_TRUE(near(found.total, wanted.total)) << found.total << " of " << wanted.total;
  if (by == MatchedBy::kFfnWidth) {
    EXPECT_TRUE(near(found.outside(), wanted.outside())) << found.outside() << " of " << wanted.outside();
    EXPECT_EQ(spec.model.width, 64);
    EXPECT_GE(spec.model.ffn_width, 32);
  } else {
    EXPECT_EQ(by, MatchedBy::kWidth);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryMixer, ::testing::ValuesIn(mixer_names()),
                         [](const auto& one) { return one.param; });

TEST(Match, WholeBlocksAreMatchedByTheirWidth) {
  ModelSpec spec = model("sasrec_block");
  EXPECT_EQ(match_parameters(spec, 1682, count_parameters(model("prism"), 1682), 0.03, "s"),
            MatchedBy::kWidth);
  EXPECT_GT(spec.model.width, 64);
}

TEST(Match, SaysWhatItFoundWhereNothingFits) {
  ModelSpec spec = model("gated_delta_net");
  const int64_t ffn = spec.model.ffn_width;
  try {
    match_parameters(spec, 1682, {.total = 1682 * 64 + 1000, .items = 1682 * 64}, 0.0001, "too large");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("\"too large\" cannot be matched within 0.01 %"));
    EXPECT_THAT(error.what(), HasSubstr("1,000 outside the item table"));
  }
  EXPECT_EQ(spec.model.ffn_width, ffn);
  EXPECT_EQ(spec.model.width, 64) << "the model stays as it was";
}

}  // namespace
}  // namespace prism
