#include "prism/compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace prism {
namespace {

TEST(Comparison, AFullDiskIsFoundBeforeTheFirstCell) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "prism-comparison-full";
  Cell cell;
  cell.config.variant = "huge", cell.path = "huge";
  const Plan plan{.models = {{.variant = "huge",
                              .mixer = "prism",
                              .item = "",
                              .parameters = {.total = int64_t{1} << 55, .items = 0},
                              .matched = MatchedBy::kNothing,
                              .width = 1,
                              .ffn_width = 1}},
                  .cells = {cell}};
  const std::string error =
      error_of([&] { run_comparison(CompareRecipe(), plan, CompareFolder(root), {.program = "false"}); });
  EXPECT_THAT(error, ::testing::HasSubstr("are needed"));
}

}  // namespace
}  // namespace prism
