#include "prism/train/run.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/train/trainer.h"
#include "support/error_of.h"
#include "train/successor_log.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Trains for one epoch into a fresh folder.
std::shared_ptr<Recommender> train_small(const fs::path& root, const Interactions& log,
                                         const at::Tensor& features = {}) {
  set_log_level(LogLevel::kQuiet);
  fs::remove_all(root);
  Recipe recipe;
  for (const char* setting : {"model.width", "model.max_length"})
    recipe.settings.set(setting, int64_t{8}, "test");
  recipe.settings.set("train.epochs", int64_t{1}, "test");
  const Split split(log, {});
  const RunFolder folder = RunFolder::create(root, 0);
  write_file(folder.config(), recipe.settings.to_toml());
  std::vector<std::string> titles(static_cast<size_t>(log.items.size()), "A title");
  titles[1] = "two\nlines";
  titles[2] = "";
  write_dataset(folder, log, titles, R"({"file":"log"})");
  auto model = std::make_shared<Recommender>(recipe.model, log.items.size(), 42);
  if (features.defined()) model->set_item_features(features);
  Trainer trainer(recipe, log, split, folder, model, c10::Device(c10::kCPU));
  trainer.run([](Recommender&) { return MetricMap{{"NDCG@10", 1}}; });
  return model;
}

TEST(Run, OpensWithWeightsNamesAndTitles) {
  const Interactions log = successor_log(10, 6, 5);
  const fs::path root = fs::path(testing::TempDir()) / "prism-run-open";
  const auto model = train_small(root, log);
  const prism::Run run = open_run(root, c10::Device(c10::kCPU));
  EXPECT_TRUE(at::equal(run.model->item_vectors(), model->item_vectors()));
  EXPECT_FALSE(run.model->is_training());
  EXPECT_EQ(run.items.name(3), log.items.name(3));
  EXPECT_EQ(run.titles,
            (std::vector<std::string>{"A title", "two lines", "", "A title", "A title", "A title"}));
  EXPECT_EQ(run.item_counts.sum().item<int64_t>(), 10 * 3);
  EXPECT_EQ(run.state.epoch, 1);
  EXPECT_EQ(run.recipe->model.model.width, 8);
}

TEST(Run, ItemFeaturesTravelWithTheCheckpoint) {
  const fs::path root = fs::path(testing::TempDir()) / "prism-run-features";
  const auto model = train_small(root, successor_log(10, 6, 5), at::randn({6, 3}));
  const prism::Run run = open_run(root, c10::Device(c10::kCPU));
  EXPECT_TRUE(at::equal(run.model->item_vectors(), model->item_vectors()));
  EXPECT_FALSE(at::equal(run.model->item_vectors(), run.model->named_parameters()["item_embedding"]));
}

TEST(Run, RefusesWhatIsNoRun) {
  const c10::Device cpu(c10::kCPU);
  EXPECT_THAT(error_of([&] { open_run("/nonexistent", cpu); }), HasSubstr("no such folder"));
  EXPECT_THAT(error_of([&] { open_run("/tmp", cpu); }), HasSubstr("no config.toml"));
}

TEST(Run, AnotherLogIsNoticed) {
  const fs::path root = fs::path(testing::TempDir()) / "prism-run-log";
  Interactions log = successor_log(10, 6, 5);
  train_small(root, log);
  const RunFolder folder(root);
  EXPECT_EQ(error_of([&] { check_same_log(folder, log); }), "no error");
  std::swap(log.item[3], log.item[4]);
  EXPECT_THAT(error_of([&] { check_same_log(folder, log); }),
              HasSubstr("continue on a newer log with --from"));
}

TEST(AdoptItems, KeepsOldIndicesAndAppendsNewItems) {
  Vocabulary known;
  for (const char* item : {"x", "b", "a"}) known.add(item);
  Interactions log;
  for (const char* item : {"a", "new", "b"}) log.items.add(item);
  log.item = {0, 1, 2, 0};
  EXPECT_EQ(adopt_items(known, log), 1);
  EXPECT_EQ(log.items.size(), 4);
  EXPECT_EQ(log.items.name(3), "new");
  EXPECT_EQ(log.item, (std::vector<int32_t>{2, 3, 1, 2}));
}

TEST(AdoptWeights, FillsTheOldRowsAndLeavesNewOnesFresh) {
  Recipe recipe;
  recipe.settings.set("model.width", int64_t{8}, "test");
  const Recommender from(recipe.model, 3, 1);
  Recommender into(recipe.model, 5, 2);
  const at::Tensor fresh = into.item_vectors().detach().clone();
  adopt_weights(from, into);
  const at::Tensor old = from.named_parameters()["item_embedding"];
  EXPECT_TRUE(at::equal(into.item_vectors().narrow(0, 0, 3), old));
  EXPECT_TRUE(at::equal(into.item_vectors().narrow(0, 3, 2), fresh.narrow(0, 3, 2)));
  recipe.settings.set("model.width", int64_t{16}, "test");
  Recommender wider(recipe.model, 5, 2);
  EXPECT_THAT(error_of([&] { adopt_weights(from, wider); }), HasSubstr("another shape"));
}

}  // namespace
}  // namespace prism
