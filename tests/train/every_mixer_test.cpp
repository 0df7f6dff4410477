// Every mixer, and stacks of several, train on a real log: twenty steps on MovieLens-100K lower the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "prism/data/reader.h"
#include "prism/mixers/mixer.h"
#include "prism/models/losses.h"
#include "prism/train/optimiser.h"
#include "prism/train/recipe.h"
#include "prism/train/windows.h"

namespace prism {
namespace {

constexpr int64_t kSteps = 20, kBatch = 32, kMaxLength = 50;

std::vector<std::string> mixers_and_stacks() {
  std::vector<std::string> all = mixer_names();
  for (const char* stack : {"prism,softmax_attention", "prism,mom", "hstu,prism"}) all.emplace_back(stack);
  return all;
}

/// The log with its training windows; read once.
struct Log {
  static const Log* shared() {
    static const std::unique_ptr<Log> log =
        std::filesystem::exists(file()) ? std::make_unique<Log>() : nullptr;
    return log.get();
  }
  static std::filesystem::path file() {
    return std::filesystem::path(PRISM_SHARED_DIR) / "data" / "rec" / "ml-100k.inter";
  }
  static DataConfig config_of_file() {
    DataConfig config;
    config.file = file().string();
    return config;
  }

  DataConfig config = config_of_file();
  ReadReport report;
  Interactions interactions = read_interactions(config, report);
  Split split = Split(interactions, config);
  std::vector<Window> windows =
      shuffled_windows(cut_windows(split, interactions.users.size(), kMaxLength), 1, 0);
};

class EveryMixerTrains : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixerTrains, TwentyStepsLowerTheLoss) {
  const Log* log = Log::shared();
  if (!log) GTEST_SKIP() << "skipped: data/rec/ml-100k.inter is not in " << PRISM_SHARED_DIR;
  Recipe recipe(GetParam());
  recipe.model.model.width = 32;
  recipe.model.model.max_length = kMaxLength;
  Recommender model(recipe.model, log->interactions.items.size(), 1);
  NamedTensors parameters;
  for (const auto& own : model.named_parameters()) parameters.emplace_back(own.key(), own.value());
  AdamW optimiser(parameters, {.beta2 = recipe.train.beta2, .weight_decay = 0});
  const auto batch_at = [&](int64_t step) {
    const auto windows = std::span(log->windows).subspan(static_cast<size_t>(step * kBatch), kBatch);
    return make_batch(log->interactions, log->split, windows, model.reads_times(), c10::Device(c10::kCPU));
  };
  const auto loss_of = [&](const TrainBatch& batch) {
    return next_item_loss(recipe.loss, model.forward(batch.inputs), model.item_vectors(), batch.targets, {},
                          1, 0);
  };
  const TrainBatch held_out = batch_at(kSteps);
  const auto held_out_loss = [&] {
    const at::NoGradGuard no_gradient;
    model.eval();
    const double loss = loss_of(held_out).item<double>();
    model.train();
    return loss;
  };
  const double before = held_out_loss();
  for (int64_t step = 0; step < kSteps; ++step) {
    model.set_dropout_step(step);
    at::Tensor loss = loss_of(batch_at(step));
    if (const at::Tensor auxiliary = model.auxiliary_loss(); auxiliary.defined()) loss = loss + auxiliary;
    loss.backward();
    clip_gradients(optimiser.parameters(), 1);
    optimiser.step(0.01);
    optimiser.zero_grad();
  }
  EXPECT_LT(held_out_loss(), before - 0.1);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixerTrains, ::testing::ValuesIn(mixers_and_stacks()), test_name);

}  // namespace
}  // namespace prism
