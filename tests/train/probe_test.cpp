#include "prism/train/probe.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

constexpr auto kCpu = c10::kCPU;

struct SmallProbe {
  explicit SmallProbe(const std::string& mixer = "prism",
                      const std::vector<std::pair<std::string, std::string>>& more = {})
      : recipe(mixer) {
    for (const auto& [key, value] : {std::pair<std::string, std::string>{"probe.length", "16"},
                                     {"probe.updates", "40"},
                                     {"probe.check_every", "20"},
                                     {"probe.test_samples", "128"},
                                     {"probe.stop_at", "2"},
                                     {"model.width", "8"}})
      recipe.settings.set_text(key, value, "test");
    for (const auto& [key, value] : more) recipe.settings.set_text(key, value, "test");
    recipe.fit_to(ProbeTask::kParity);
  }
  ProbeRecipe recipe;
};

TEST(ProbeTraining, LearnsAParityInsideItsConvolution) {
  const SmallProbe small("prism", {{"probe.updates", "600"},
                                   {"probe.rate", "0.01"},
                                   {"probe.stop_at", "0.999"},
                                   {"model.width", "16"},
                                   {"probe.count", "2"}});
  const ProbeResult result = train_probe(small.recipe, ProbeTask::kParity, kCpu);
  EXPECT_GT(result.accuracy, 0.95);
  EXPECT_EQ(result.chance, 0.5);
  EXPECT_LT(result.updates, 600) << "stops once it is solved";
  EXPECT_EQ(result.curve.back().first, result.updates);
}

TEST(ProbeTraining, RepeatsOnAnyNumberOfThreads) {
  const SmallProbe small("gated_delta_net");
  const int threads = at::get_num_threads();
  const ProbeResult first = train_probe(small.recipe, ProbeTask::kParity, kCpu);
  at::set_num_threads(1);
  const ProbeResult again = train_probe(small.recipe, ProbeTask::kParity, kCpu);
  at::set_num_threads(threads);
  EXPECT_EQ(first.accuracy, again.accuracy);
  EXPECT_EQ(first.curve, again.curve);
  EXPECT_EQ(first.updates, 40);
  EXPECT_EQ(first.curve.size(), 2U);
}

TEST(ProbeTraining, EveryTaskAndMixerTakesAStep) {
  for (const std::string& mixer : mixer_names())
    for (size_t task = 0; task < EnumNames<ProbeTask>::names.size(); ++task) {
      if (mixer != "prism" && task > 0) continue;
      ProbeRecipe recipe(mixer);
      for (const auto& [key, value] :
           {std::pair{"probe.updates", "2"}, {"probe.test_samples", "8"}, {"probe.batch", "2"}})
        recipe.settings.set_text(key, value, "test");
      recipe.fit_to(static_cast<ProbeTask>(task));
      const ProbeResult result = train_probe(recipe, static_cast<ProbeTask>(task), kCpu);
      EXPECT_EQ(result.updates, 2) << mixer << " " << EnumNames<ProbeTask>::names[task];
      EXPECT_GT(result.parameters, 0);
    }
}

TEST(ProbeRecipes, TheSettingChoosesWhatNobodyChose) {
  ProbeRecipe paper;
  paper.settings.set_text("probe.setting", "paper", "test");
  paper.settings.set_text("probe.count", "5", "test");
  paper.fit_to(ProbeTask::kMqar);
  EXPECT_EQ(paper.config.count, 5);
  EXPECT_EQ(paper.config.updates, 10'000);
  EXPECT_EQ(paper.model.model.width, 16);
  EXPECT_EQ(paper.model.model.max_length, 128);
  EXPECT_EQ(std::get<int64_t>(paper.settings.find("mixer.heads")->get()), 1);
  for (const char* setting : {"paper", "solvable"})
    for (size_t task = 0; task < EnumNames<ProbeTask>::names.size(); ++task) {
      ProbeRecipe recipe;
      recipe.settings.set_text("probe.setting", setting, "test");
      recipe.fit_to(static_cast<ProbeTask>(task));
      EXPECT_NO_THROW(recipe.probe(static_cast<ProbeTask>(task))) << setting << " " << task;
    }
  ProbeRecipe wide;
  wide.settings.set_text("model.width", "24", "test");
  wide.fit_to(ProbeTask::kMqar);
  EXPECT_EQ(wide.model.model.width, 24);
}

TEST(ProbeRecipes, EmbeddingsStartWithUnitLength) {
  const SmallProbe small("sasrec_block");
  const auto model = make_probe_model(small.recipe);
  for (const auto& own : model->named_parameters(/*recurse=*/false))
    if (own.key().ends_with("embedding")) {
      EXPECT_NEAR(own.value().norm(2, -1).square().mean().item<double>(), 1, 0.1) << own.key();
    }
}

TEST(ProbeRecipes, AnUnfittedRecipeIsRefused) {
  try {
    train_probe(ProbeRecipe(), ProbeTask::kMux, kCpu);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("not fitted"));
  }
}

}  // namespace
}  // namespace prism
