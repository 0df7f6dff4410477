#include "prism/compare/compare_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "prism/compare/plan.h"
#include "prism/core/error.h"
#include "prism/core/files.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

template <class Action>
std::string usage_error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Variants, AreAMixerWithSettingsAndALabel) {
  const Variant plain = parse_variant("gated_delta_net");
  EXPECT_EQ(plain.label, "gated_delta_net");
  EXPECT_EQ(plain.mixer, "gated_delta_net");
  const Variant rich = parse_variant("L = 1, no conv: prism steps=1  anchor=token");
  EXPECT_EQ(rich.label, "L = 1, no conv");
  EXPECT_EQ(rich.mixer, "prism");
  EXPECT_THAT(rich.settings, ElementsAre(Pair("steps", "1"), Pair("anchor", "token")));
  EXPECT_THAT(usage_error_of([] { parse_variant("prism steps"); }),
              HasSubstr("\"steps\" is no setting=value"));
  EXPECT_THAT(usage_error_of([] { parse_variant(""); }), HasSubstr("names no mixer"));
}

/// The error of planning probes with these variants.
std::string plan_error(std::vector<std::string> variants,
                       const std::function<void(CompareConfig&)>& change = {}) {
  CompareRecipe recipe;
  recipe.compare.task = CompareTask::kProbe;
  recipe.compare.probes = {"parity"};
  recipe.compare.variants = std::move(variants);
  if (change) change(recipe.compare);
  return usage_error_of([&] { plan_comparison(recipe); });
}

TEST(Variants, DifferInModelAndMixerAlone) {
  EXPECT_EQ(plan_error({"prism", "no conv: prism anchor=token", "prism,mom prism.steps=1 mom.memories=2"}),
            "");
  EXPECT_THAT(plan_error({"prism", "prism batch=8"}),
              HasSubstr("batch is a setting of [probe], which is the same for all variants"));
  EXPECT_THAT(plan_error({"prism", "prism seed=5"}), HasSubstr("seed is a setting of [run]"));
  EXPECT_THAT(plan_error({"prism", "a: prism mixer=gla"}), HasSubstr("its mixer is the first word"));
  EXPECT_THAT(plan_error({"prism", "a: prism ffn_width=100"}), HasSubstr("matching decides the FFN width"));
  EXPECT_THAT(plan_error({"prism", "prism stepz=1"}), HasSubstr("did you mean \"steps\"?"));
  EXPECT_THAT(plan_error({": prism"}), HasSubstr("has an empty label"));
}

TEST(Variants, OfAPatternSetEveryMixerThatHasTheSetting) {
  Recipe target("prism,mom");
  CompareRecipe().apply(parse_variant("prism,mom heads=4 prism.steps=3"), target.settings);
  EXPECT_EQ(std::get<int64_t>(target.settings.find("mixer.prism.heads")->get()), 4);
  EXPECT_EQ(std::get<int64_t>(target.settings.find("mixer.mom.heads")->get()), 4);
  EXPECT_EQ(std::get<int64_t>(target.settings.find("mixer.prism.steps")->get()), 3);
}

TEST(ListsOfAComparison, NameEachThingOnce) {
  EXPECT_EQ(plan_error({"prism"}), "");
  EXPECT_THAT(plan_error({"prism"},
                         [](CompareConfig& c) {
                           c.seeds = {1, 2, 1};
                         }),
              HasSubstr("seeds has 1 twice"));
  EXPECT_THAT(plan_error({"prism"}, [](CompareConfig& c) { c.seeds = {}; }), HasSubstr("seeds is empty"));
  EXPECT_THAT(plan_error({"prism"},
                         [](CompareConfig& c) {
                           c.probes = {"all", "mux"};
                         }),
              HasSubstr("probes has mux twice"));
  EXPECT_THAT(plan_error({"prism"},
                         [](CompareConfig& c) {
                           c.probes = {"mux", "partiy"};
                         }),
              HasSubstr("did you mean \"parity\"?"));
}

class CompareRecipes : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / "compare-recipes";
    fs::create_directories(root_);
    write_file(root_ / "base.toml",
               "[model]\nwidth = 32\ndropout = 0.5\n[mixer]\nheads = 4\nsteps = 3\n[train]\nepochs = 7\n");
    write_file(root_ / "compare.toml",
               "[compare]\nbase = \"base.toml\"\nseeds = [4, 5]\n[train]\nepochs = 2\n[model]\nblocks = 1\n");
  }
  fs::path root_;
};

TEST_F(CompareRecipes, StandOverTheirBase) {
  const auto recipe = CompareRecipe::read(root_ / "compare.toml");
  EXPECT_EQ(recipe->recipe.train.epochs, 2);
  EXPECT_EQ(recipe->recipe.model.model.width, 32);
  EXPECT_THAT(recipe->compare.seeds, ElementsAre(4, 5));
}

TEST_F(CompareRecipes, ABaseMayHaveABase) {
  write_file(root_ / "top.toml", "[compare]\nbase = \"compare.toml\"\n[train]\nepochs = 9\n");
  const auto recipe = CompareRecipe::read(root_ / "top.toml");
  EXPECT_EQ(recipe->recipe.train.epochs, 9);
  EXPECT_EQ(recipe->recipe.model.model.blocks, 1);
  EXPECT_EQ(recipe->recipe.model.model.width, 32);
}

TEST_F(CompareRecipes, BasesThatLeadBackAreAnError) {
  write_file(root_ / "own.toml", "[compare]\nbase = \"./own.toml\"\n");
  EXPECT_THAT(usage_error_of([&] { CompareRecipe::read(root_ / "own.toml"); }), HasSubstr("own.toml -> "));
  write_file(root_ / "a.toml", "[compare]\nbase = \"b.toml\"\n");
  write_file(root_ / "b.toml", "[compare]\nbase = \"a.toml\"\n");
  EXPECT_THAT(usage_error_of([&] { CompareRecipe::read(root_ / "a.toml"); }),
              HasSubstr("lead back to a recipe before them"));
}

TEST_F(CompareRecipes, ApplyWhatAMixerHasAndTheVariantLast) {
  const auto recipe = CompareRecipe::read(root_ / "compare.toml");
  Recipe prism("prism"), attention("softmax_attention");
  recipe->apply(parse_variant("prism steps=1 dropout=0.1"), prism.settings);
  EXPECT_EQ(std::get<int64_t>(prism.settings.find("mixer.steps")->get()), 1);
  EXPECT_EQ(std::get<int64_t>(prism.settings.find("mixer.heads")->get()), 4);
  EXPECT_EQ(prism.model.model.dropout, 0.1);
  recipe->apply(parse_variant("softmax_attention"), attention.settings);
  EXPECT_EQ(std::get<int64_t>(attention.settings.find("mixer.heads")->get()), 4);
  EXPECT_EQ(attention.model.model.mixer, "softmax_attention");
  EXPECT_FALSE(attention.settings.is_assigned("train.batch_size")) << "fit_to still chooses it";
  EXPECT_THAT(usage_error_of([&] { recipe->apply(parse_variant("prism step=1"), prism.settings); }),
              HasSubstr("variant \"prism step=1\": unknown setting \"step\" (did you mean \"steps\"?)"));
}

TEST_F(CompareRecipes, WriteWhatWasChosenAndReadItBack) {
  const auto recipe = CompareRecipe::read(root_ / "compare.toml");
  const std::string text = recipe->to_toml();
  EXPECT_THAT(text, Not(HasSubstr("base")));
  EXPECT_THAT(text, Not(HasSubstr("batch_size")));
  write_file(root_ / "again.toml", text);
  EXPECT_EQ(CompareRecipe::read(root_ / "again.toml")->to_toml(), text);
}

/// Every comparison of recipes/ names mixers and settings that exist.
TEST(ShippedComparisons, FitTheProgram) {
  int found = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(PRISM_SOURCE_DIR) / "recipes")) {
    if (read_file(entry.path()).find("[compare]") == std::string::npos) continue;
    ++found;
    const auto recipe = CompareRecipe::read(entry.path());
    if (recipe->compare.task == CompareTask::kRecommendation) {
      for (const Variant& variant : variants_of(*recipe)) {
        Recipe own(variant.mixer);
        EXPECT_NO_THROW(recipe->apply(variant, own.settings)) << entry.path() << " " << variant.label;
      }
    } else {
      EXPECT_FALSE(plan_comparison(*recipe).cells.empty()) << entry.path();
    }
  }
  EXPECT_GE(found, 8);
}

}  // namespace
}  // namespace prism
