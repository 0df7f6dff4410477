#include "prism/train/trainer.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/evaluate/evaluate_model.h"
#include "prism/evaluate/metrics.h"
#include "train/successor_log.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// One training set-up in a fresh folder.
struct Training {
  explicit Training(const std::string& name, bool keep_folder = false)
      : log(successor_log(40, 24, 20)),
        split(log, {}),
        root(fs::path(testing::TempDir()) / ("prism-run-" + name)) {
    set_log_level(LogLevel::kQuiet);
    if (!keep_folder) fs::remove_all(root);
    for (const auto& [key, value] : std::map<std::string, std::string>{{"model.width", "16"},
                                                                       {"mixer.heads", "2"},
                                                                       {"model.blocks", "1"},
                                                                       {"model.max_length", "8"},
                                                                       {"model.dropout", "0.2"},
                                                                       {"train.batch_size", "16"},
                                                                       {"train.epochs", "3"},
                                                                       {"train.warmup", "0"},
                                                                       {"train.learning_rate", "0.02"}})
      recipe.settings.set_text(key, value, "test");
  }
  std::unique_ptr<Trainer> make() {
    folder = keep() ? RunFolder(root) : RunFolder::create(root, 0);
    model = std::make_shared<Recommender>(recipe.model, log.items.size(), 42);
    return std::make_unique<Trainer>(recipe, log, split, folder, model, c10::Device(c10::kCPU));
  }
  bool keep() const { return fs::exists(root / "checkpoints"); }

  Recipe recipe;
  Interactions log;
  Split split;
  fs::path root;
  RunFolder folder{""};
  std::shared_ptr<Recommender> model;
};

MetricMap constant_metric(Recommender&) { return {{"NDCG@10", 0.5}}; }

std::vector<nlohmann::json> rows(const Training& setup) {
  std::vector<nlohmann::json> all;
  std::istringstream text(read_file(setup.folder.metrics()));
  for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

void expect_equal_weights(const Recommender& a, const Recommender& b) {
  const NamedTensors left = model_tensors(a), right = model_tensors(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(at::equal(left[i].second, right[i].second)) << left[i].first;
}

TEST(Trainer, LearnsADeterministicSuccessor) {
  Training setup("successor");
  setup.recipe.settings.set("train.epochs", int64_t{40}, "test");
  const auto hit_rate = [&](Recommender& model, Part part) {
    RankMetrics metrics({1, 10});
    for (const auto& counts : rank_cases(model, setup.log, setup.split, part)) metrics.add(counts);
    MetricMap map;
    for (const Metric& metric : metrics.means()) map[metric.name] = metric.value;
    return map;
  };
  const auto trainer = setup.make();
  EXPECT_EQ(trainer->run([&](Recommender& model) { return hit_rate(model, Part::kValid); }), 0);
  trainer->load_best();
  EXPECT_GT(hit_rate(*setup.model, Part::kTest).at("HR@1"), 0.97);
  EXPECT_LT(rows(setup).back().at("loss").get<double>(), rows(setup).front().at("loss").get<double>() / 3);
}

TEST(Trainer, SameSeedGivesTheSameBits) {
  Training first("bits-a"), second("bits-b");
  first.make()->run(constant_metric);
  second.make()->run(constant_metric);
  expect_equal_weights(*first.model, *second.model);
  EXPECT_EQ(rows(first).back()["loss"], rows(second).back()["loss"]);
}

/// Stops at the first validation, then goes on. Stops within an epoch: tests/apps, with kill -9.
TEST(Trainer, ASignalSavesAndResumeContinuesBitForBit) {
  Training whole("whole"), parts("parts");
  whole.make()->run(constant_metric);
  const auto first = parts.make();
  const int stopped = first->run([](Recommender& model) {
    std::raise(SIGTERM);
    return constant_metric(model);
  });
  EXPECT_EQ(stopped, SIGTERM);
  EXPECT_EQ(first->state().epoch, 1);
  EXPECT_EQ(first->state().window, 0) << "no step of epoch 2 came before the signal was seen";
  const auto second = parts.make();
  second->resume();
  EXPECT_EQ(second->state().step, first->state().step);
  EXPECT_EQ(second->run(constant_metric), 0);
  expect_equal_weights(*whole.model, *parts.model);
  EXPECT_EQ(rows(whole).size(), rows(parts).size());
  EXPECT_EQ(rows(whole).back()["loss"], rows(parts).back()["loss"]);
}

TEST(Trainer, ResumeCutsRowsThatCameAfterTheCheckpoint) {
  Training setup("cut-rows");
  setup.make()->run(constant_metric);
  const std::string before = read_file(setup.folder.metrics());
  write_file(setup.folder.metrics(), before + "{\"kind\":\"step\",\"step\":999}\n{\"half");
  setup.recipe.settings.set("train.epochs", int64_t{4}, "test");
  const auto trainer = setup.make();
  trainer->resume();
  EXPECT_EQ(read_file(setup.folder.metrics()), before);
  trainer->run(constant_metric);
  EXPECT_EQ(rows(setup).back()["epoch"], 4);
}

TEST(Trainer, StopsWhenValidationNoLongerImproves) {
  Training setup("early");
  setup.recipe.settings.set("train.epochs", int64_t{50}, "test");
  setup.recipe.settings.set("train.patience", int64_t{3}, "test");
  const double metrics[] = {0.1, 0.4, 0.3, 0.4, 0.2};
  size_t call = 0;
  at::Tensor best_table;
  const auto trainer = setup.make();
  trainer->run([&](Recommender& model) -> MetricMap {
    if (call == 1) best_table = model.item_vectors().detach().clone();
    return {{"NDCG@10", metrics[call++]}};
  });
  EXPECT_EQ(trainer->state().epoch, 5) << "three validations after the best, an equal one is not better";
  EXPECT_EQ(trainer->state().best_epoch, 2);
  trainer->load_best();
  EXPECT_TRUE(at::equal(setup.model->item_vectors(), best_table));
}

TEST(Trainer, ALossThatIsNoNumberStopsWithAdvice) {
  Training setup("nan");
  setup.recipe.settings.set("train.learning_rate", 100.0, "test");
  setup.recipe.settings.set("train.clip_norm", 0.0, "test");
  const auto trainer = setup.make();
  setup.model->item_vectors().data().fill_(std::numeric_limits<float>::infinity());
  try {
    trainer->run(constant_metric);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lower --learning-rate"));
  }
}

/// Bytes that a step over 16 windows of 8 items keeps, with this mixer's settings.
int64_t activations(const std::string& mixer, const std::map<std::string, std::string>& settings) {
  Recipe recipe(mixer);
  recipe.settings.set_text("train.batch_size", "16", "test");
  recipe.settings.set_text("model.max_length", "8", "test");
  for (const auto& [name, value] : settings) recipe.settings.set_text("mixer." + name, value, "test");
  return estimate_memory(recipe, 1000).activations;
}

TEST(MemoryEstimate, SeesMiniBatchWindowAndSlotsAsFarAsTheSequenceGoes) {
  const auto titans = [](const char* size) { return activations("titans", {{"mini_batch", size}}); };
  constexpr int64_t kMeasured = 20 * int64_t{sizeof(float)};  // of a token, head and token of its mini-batch
  EXPECT_GE(titans("64") - titans("1"), kMeasured * 63 * (16 * 8) * 2 * 2) << "two heads, two blocks";
  EXPECT_EQ(titans("64"), titans("65536")) << "the operation does no more than the sequence, or 64 tokens";
  const auto window = [](const char* size) { return activations("atlas", {{"window", size}}); };
  EXPECT_LT(window("1"), window("64"));
  EXPECT_EQ(window("64"), window("4096"));
  const auto slots = [](const char* count) { return activations("gsa", {{"slots", count}}); };
  EXPECT_LT(4 * slots("64"), slots("65536"));
}

TEST(RunFolder, AnExistingRunIsNotOverwritten) {
  Training setup("exists");
  setup.make();
  try {
    RunFolder::create(setup.root, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("exists; continue it with --resume or choose another with --out"));
  }
}

TEST(RunFolder, AFullDiskIsFoundBeforeTraining) {
  try {
    RunFolder::create(fs::path(testing::TempDir()) / "prism-run-full", int64_t{1} << 60);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("are needed"));
  }
}

}  // namespace
}  // namespace prism
