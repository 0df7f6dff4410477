// The loop that everything is trained with, on a task of four numbers.
#include "train/train_loop.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Weights : torch::nn::Module {
  Weights() : w(register_parameter("w", at::ones({4}))) {}
  at::Tensor w;
};

/// Unit i pulls the weights to i times (0, 1, 2, 3) and has 1 + i % 3 positions.
class PullTask final : public TrainTask {
 public:
  torch::nn::Module& model() override { return *weights; }
  int64_t rounds() const override { return 2; }
  int64_t units(int64_t) const override { return 12; }
  void open_round(int64_t) override {}
  int64_t positions(int64_t first, int64_t count) const override {
    int64_t sum = 0;
    for (int64_t i = first; i < first + count; ++i) sum += 1 + i % 3;
    return sum;
  }
  TaskLoss loss(const StepPart& part) override {
    const auto [first, count, step, position, index] = part;
    EXPECT_EQ(position, positions(first - first % batch, first % batch));
    at::Tensor sum;
    for (int64_t i = first; i < first + count; ++i) {
      const at::Tensor target = at::arange(4, at::kFloat) * static_cast<double>(i);
      const at::Tensor own = (weights->w - target).square().sum() * static_cast<double>(positions(i, 1));
      sum = sum.defined() ? sum + own : own;
    }
    const at::Tensor mean = sum / static_cast<double>(positions(first, count));
    return {.mean = broken_steps.contains(step) ? mean * std::numeric_limits<double>::quiet_NaN() : mean,
            .auxiliary = {}};
  }
  bool validates_after(int64_t) const override { return true; }
  MetricMap validate() override {
    validated_in_bf16 = at::autocast::is_autocast_enabled(at::kCPU);
    return {{"distance", weights->w.sum().item<double>()}};
  }
  void tell(const EpochRow& row) override { rows.push_back(row); }
  std::string label(int64_t) const override { return ""; }
  std::string divergence_advice() const override { return "pull less"; }
  std::string memory_advice() const override { return "pull fewer"; }

  std::shared_ptr<Weights> weights = std::make_shared<Weights>();
  int64_t batch = 4;  // units of a step
  std::set<int64_t> broken_steps;
  bool validated_in_bf16 = false;
  std::vector<EpochRow> rows;
};

TrainLoopOptions options(int64_t micro_batches = 1) {
  return {.batch_size = 4,
          .update = {.micro_batches = micro_batches, .rate = [](int64_t) { return 0.1; }},
          .metric = "distance"};
}

int run(PullTask& task, const TrainLoopOptions& options, const RunFolder* folder = nullptr) {
  set_log_level(LogLevel::kQuiet);
  return TrainLoop(task, options, c10::Device(c10::kCPU), folder).run();
}

TEST(TrainLoop, MicroBatchesAddUpToTheBatch) {
  PullTask whole, parts, single;
  run(whole, options());
  run(parts, options(3));
  run(single, options(100));
  EXPECT_TRUE(at::allclose(whole.weights->w, parts.weights->w, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(whole.weights->w, single.weights->w, 1e-5, 1e-6));
  EXPECT_NEAR(whole.rows[1].loss, parts.rows[1].loss, 1e-6 * whole.rows[1].loss);
}

TEST(TrainLoop, ValidatesInThePrecisionOfTheTraining) {
  PullTask full, half;
  TrainLoopOptions in_bf16 = options();
  in_bf16.update.precision = Precision::kBf16;
  run(full, options());
  run(half, in_bf16);
  EXPECT_FALSE(full.validated_in_bf16);
  EXPECT_TRUE(half.validated_in_bf16);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU)) << "nor afterwards";
}

TEST(TrainLoop, AStepThatIsNotFiniteIsSkippedAndReported) {
  const fs::path root = fs::path(testing::TempDir()) / "prism-skipped-step";
  fs::remove_all(root);
  const RunFolder folder = RunFolder::create(root, 0);
  PullTask task;
  task.broken_steps = {1};
  TrainLoopOptions with_settings = options();
  EXPECT_EQ(run(task, with_settings, &folder), 0);
  EXPECT_TRUE(std::isfinite(task.rows[0].loss));
  EXPECT_TRUE(std::isfinite(task.weights->w.sum().item<double>()));
  std::istringstream text(read_file(folder.metrics()));
  int skipped = 0;
  for (std::string line; std::getline(text, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("skipped")) continue;
    ++skipped;
    EXPECT_EQ(row["step"], 2);
    EXPECT_TRUE(row["loss"].is_null());
  }
  EXPECT_EQ(skipped, 1);
}

TEST(TrainLoop, TooManyInARowEndItWithAdvice) {
  PullTask task;
  for (int64_t step = 0; step < 100; ++step) task.broken_steps.insert(step);
  TrainLoopOptions one_unit = options();
  one_unit.batch_size = task.batch = 1;
  try {
    run(task, one_unit);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("not a number any more at step 10; pull less"));
  }
  EXPECT_TRUE(at::equal(task.weights->w, at::ones({4})));
}

TEST(TrainLoop, StopsAtTheValueThatWasAskedFor) {
  PullTask task;
  TrainLoopOptions reached = options();
  reached.stop_at = -1e9;
  EXPECT_EQ(run(task, reached), 0);
  EXPECT_EQ(task.rows.size(), 1U);
}

}  // namespace
}  // namespace prism
