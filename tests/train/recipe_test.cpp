#include "prism/train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/train/language_model_recipe.h"
#include "support/error_of.h"
#include "train/successor_log.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Recipe, ChoosesBySizeWhatNobodyChose) {
  Recipe recipe;
  recipe.settings.set("model.dropout", 0.1, "test");
  const std::string said = recipe.fit_to(successor_log(5, 5, 5));
  EXPECT_EQ(recipe.model.model.max_length, 50);
  EXPECT_EQ(recipe.model.model.dropout, 0.1);
  EXPECT_EQ(recipe.train.batch_size, 32);
  EXPECT_THAT(said, HasSubstr("max_length = 50, batch_size = 32"));
  EXPECT_THAT(said, Not(HasSubstr("dropout")));
}

TEST(Recipe, ItsTomlAndJsonAreRecipesAgain) {
  Recipe recipe("sasrec_block");
  recipe.settings.set("mixer.heads", int64_t{4}, "test");
  recipe.settings.set("train.learning_rate", 0.0003, "test");
  const auto file = std::filesystem::path(testing::TempDir()) / "prism-recipe.toml";
  write_file(file, recipe.settings.to_toml());
  const auto read = Recipe::read(file);
  EXPECT_EQ(read->settings.to_toml(), recipe.settings.to_toml());
  EXPECT_EQ(read->fit_to(successor_log(5, 5, 5)), "") << "a run's config leaves nothing to choose";
  EXPECT_EQ(Recipe::parse_json(recipe.settings.to_json(), "json")->settings.to_toml(),
            recipe.settings.to_toml());
}

TEST(Recipe, EveryShippedRecipeIsValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRISM_SOURCE_DIR "/recipes")) {
    if (read_file(entry.path()).find("[compare]") != std::string::npos)
      continue;  // tests/compare reads those
    if (entry.path().filename().string().starts_with("lm-"))
      EXPECT_NO_THROW(LanguageModelRecipe::read(entry.path())) << entry.path();
    else
      EXPECT_NO_THROW(Recipe::read(entry.path())) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 4);
}

TEST(Recipe, AComparisonNamesItsCommand) {
  const auto file = std::filesystem::path(testing::TempDir()) / "prism-comparison.toml";
  write_file(file, "[compare]\nout = \"runs/x\"\n[train]\nepochs = 2\n");
  EXPECT_THAT(error_of([&] { Recipe::read(file); }), HasSubstr("is a comparison; prism compare takes it"));
  EXPECT_THAT(error_of([&] { LanguageModelRecipe::read(file); }), HasSubstr("is a comparison"));
}

TEST(Recipe, AWrongKeyNamesTheNearestOne) {
  const auto file = std::filesystem::path(testing::TempDir()) / "prism-wrong.toml";
  write_file(file, "[train]\nlearning_rat = 1\n");
  try {
    Recipe::read(file);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"train.learning_rate\"?"));
  }
}

}  // namespace
}  // namespace prism
