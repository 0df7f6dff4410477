// Training as several processes, started as torchrun and mpirun start them, against one process with the same
// global batch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "prism/core/random.h"
#include "prism/train/checkpoint.h"
#include "support/rank_processes.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class DistributedTraining : public ::testing::Test {
 protected:
  using Processes = std::vector<std::unique_ptr<RankProcess>>;

  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("prism-ranks-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  static Words program(Words words) {
    words.insert(words.begin(), PRISM_BINARY_DIR "/bin/prism");
    words.insert(words.end(), {"--threads", "1"});
    return words;
  }
  Processes start(int64_t size, const Words& words) const {
    return start_ranks(size, program(words), root_ / "output");
  }
  /// As one process where `size` is 1, else as ranks; all must end well, and only rank 0 may speak.
  void run(int64_t size, const Words& words) {
    if (size == 1) {
      RankProcess alone(program(words), {}, root_ / "output");
      ASSERT_EQ(alone.wait(), 0) << alone.err();
      return;
    }
    const Processes ranks = start(size, words);
    for (const auto& rank : ranks) ASSERT_EQ(rank->wait(), 0) << rank->err();
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->out().empty(), rank != ranks[0]) << rank->out();
      EXPECT_EQ(rank->err().empty(), rank != ranks[0]) << rank->err();
    }
    EXPECT_THAT(ranks[0]->err(), HasSubstr(fmt::format("{} processes share every step", size)));
  }

  std::vector<nlohmann::json> rows(const std::string& run) const {
    std::vector<nlohmann::json> all;
    std::istringstream file(read_file(root_ / run / "metrics.jsonl"));
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  Checkpoint last(const std::string& run) const {
    return read_checkpoint(root_ / run / "checkpoints" / "last.safetensors");
  }
  /// Losses and gradient norms of all logged steps, and losses and metrics of all rounds.
  void expect_same_curve(const std::string& a, const std::string& b, double tolerance) const {
    const auto left = rows(a), right = rows(b);
    ASSERT_EQ(left.size(), right.size());
    ASSERT_GE(left.size(), 3U);
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i]["step"], right[i]["step"]);
      for (const char* name : {"loss", "gradient_norm"})
        if (left[i].contains(name)) {
          EXPECT_NEAR(left[i][name].get<double>() / right[i][name].get<double>(), 1, tolerance)
              << left[i].dump() << "\n"
              << right[i].dump();
        }
      EXPECT_EQ(left[i].value("best", false), right[i].value("best", false));
    }
  }
  void expect_same_weights(const std::string& a, const std::string& b) const {
    const auto left = last(a).tensors, right = last(b).tensors;
    ASSERT_EQ(left.size(), right.size());
    for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
  }
  /// Relative distance of all weights.
  double distance(const std::string& a, const std::string& b) const {
    const auto left = last(a).tensors, right = last(b).tensors;
    double square = 0, norm = 0;
    for (const auto& [name, tensor] : left) {
      if (!name.starts_with("model.")) continue;
      square += (tensor - right.at(name)).square().sum().item<double>();
      norm += tensor.square().sum().item<double>();
    }
    return std::sqrt(square / norm);
  }
  void wait_for(const std::string& file) const {  // at most a minute
    for (int i = 0; i < 12'000 && !fs::exists(root_ / file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(fs::exists(root_ / file));
  }

  void prepare_tokens() {
    std::string text;
    RandomStream random(3, "text");
    constexpr const char* kWords[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "dog\n"};
    for (int i = 0; i < 4000; ++i) text += kWords[random.below(8)];
    write_file(path("text.txt"), text);
    RankProcess prepare(program({"lm", "prepare", path("text.txt"), "--format", "lines", "--tokenizer",
                                 "bytes", "--out", path("tokens")}),
                        {}, root_ / "output");
    ASSERT_EQ(prepare.wait(), 0) << prepare.err();
  }
  static Words split(const std::string& line) {
    std::istringstream stream(line);
    Words words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }
  Words lm_words(const std::string& out, int updates, const std::string& more = "", int batch = 6) const {
    const bool drops = more.find("--dropout") == std::string::npos;
    Words words = split(
        "lm train --width 32 --blocks 2 --ffn-width 48 --heads 2 --length 33 --warmup 5 "
        "--learning-rate 0.001 --validate-every 15 " +
        std::string(drops ? "--dropout 0.1 " : "") + more);
    const Words others = {"--tokens",  path("tokens"),          "--out",        path(out),
                          "--updates", std::to_string(updates), "--batch-size", std::to_string(batch)};
    words.insert(words.end(), others.begin(), others.end());
    return words;
  }

  fs::path root_;
};

/// Two ranks take the two halves that one process takes in turn: the same sums, the same bits. A whole batch
/// at once adds up in another order.
TEST_F(DistributedTraining, ALanguageModelLearnsAsInOneProcess) {
  prepare_tokens();
  run(2, lm_words("ranks", 60));
  run(1, lm_words("halves", 60, "--micro-batches 2"));
  run(1, lm_words("whole", 60));
  run(2, lm_words("lean", 60, "--activation-checkpointing"));
  expect_same_weights("ranks", "halves");
  expect_same_weights("ranks", "lean");
  expect_same_curve("ranks", "whole", 1e-5);
  EXPECT_LT(distance("ranks", "whole"), 1e-4);
  EXPECT_EQ(last("ranks").state.best_epoch, last("whole").state.best_epoch);
}

/// Documents begin inside the sequences: three ranks cut them anywhere. One long document: rows.
TEST_F(DistributedTraining, RanksThatDivideTokensLearnAsOneProcess) {
  prepare_tokens();
  for (const std::string mixer : {"prism", "gated_delta_net"}) {
    const std::string settings = "--dropout 0 --mixer " + mixer;
    run(1, lm_words("whole-" + mixer, 30, settings));
    run(3, lm_words("ranks-" + mixer, 30, settings + " --share tokens"));
    expect_same_curve("ranks-" + mixer, "whole-" + mixer, 1e-5);
    EXPECT_LT(distance("ranks-" + mixer, "whole-" + mixer), 1e-4);
  }
  run(3, lm_words("lean", 30, "--dropout 0 --share tokens --activation-checkpointing"));
  expect_same_weights("ranks-prism", "lean");
  run(1, lm_words("one-whole", 30, "--dropout 0", 1));
  run(2, lm_words("one-ranks", 30, "--dropout 0 --share tokens", 1));
  expect_same_curve("one-ranks", "one-whole", 1e-5);
  run(1, lm_words("bf16-whole", 30, "--dropout 0 --precision bf16"));
  run(2, lm_words("bf16-ranks", 30, "--dropout 0 --precision bf16 --share tokens"));
  expect_same_curve("bf16-ranks", "bf16-whole", 0.02);
}

TEST_F(DistributedTraining, MicroBatchesAreDividedAmongRanks) {
  prepare_tokens();
  run(1, lm_words("whole", 30));
  run(2, lm_words("ranks", 30, "--micro-batches 3"));
  expect_same_curve("ranks", "whole", 1e-5);
}

/// Three ranks; the last batch of an epoch has a single window, so ranks 1 and 2 have nothing there.
TEST_F(DistributedTraining, ARecommenderLearnsAsInOneProcess) {
  std::string text = "user_id,item_id,timestamp\n";
  RandomStream random(5, "log");
  for (int user = 0; user < 121; ++user) {
    const auto start = static_cast<int>(random.below(50)), length = static_cast<int>(5 + random.below(5));
    for (int t = 0; t < length; ++t) text += fmt::format("u{},i{},{}\n", user, (start + t) % 50, 100 + t);
  }
  write_file(path("log.csv"), text);
  const auto words = [&](const std::string& out) {
    Words all = split(
        "train --width 32 --blocks 1 --max-length 10 --batch-size 20 --epochs 4 --warmup 5 --patience 0 "
        "--loss sampled_softmax --negatives 9 --dropout 0.2");
    all.insert(all.end(), {path("log.csv"), "--out", path(out)});
    return all;
  };
  run(1, words("one"));
  EXPECT_EQ(last("one").state.step, 4 * 7);
  run(3, words("three"));
  expect_same_curve("one", "three", 1e-4);
  EXPECT_LT(distance("one", "three"), 1e-3);
  EXPECT_TRUE(fs::exists(root_ / "three" / "results.json"));
}

TEST_F(DistributedTraining, ADeadRankEndsTheRunAndTheCheckpointGoesOn) {
  prepare_tokens();
  run(2, lm_words("whole", 60, "--checkpoint-steps 7"));
  {
    const Processes ranks = start(2, lm_words("killed", 60, "--checkpoint-steps 7"));
    wait_for("killed/checkpoints/last.safetensors");
    ranks[1]->kill(SIGKILL);
    EXPECT_EQ(ranks[1]->wait(), -SIGKILL);
    EXPECT_EQ(ranks[0]->wait(), 1);
    EXPECT_THAT(ranks[0]->err(), HasSubstr("rank 0 of 2: another rank has ended or does not answer"));
    EXPECT_THAT(ranks[0]->err(), HasSubstr("last.safetensors holds step "));
    EXPECT_THAT(ranks[0]->err(), HasSubstr("--resume " + path("killed")));
  }
  EXPECT_LT(last("killed").state.step, 60);
  fs::copy(root_ / "killed", root_ / "alone", fs::copy_options::recursive);
  run(2, {"lm", "train", "--resume", path("killed")});
  expect_same_weights("whole", "killed");
  run(1,
      {"lm", "train", "--resume", path("alone")});  // another number of processes: the same, but for rounding
  EXPECT_LT(distance("whole", "alone"), 1e-3);
}

/// A signal that only rank 1 hears stops both after one step.
TEST_F(DistributedTraining, AnInterruptReachesAllRanks) {
  prepare_tokens();
  const Processes ranks = start(2, lm_words("run", 100'000, "--checkpoint-steps 3"));
  wait_for("run/checkpoints/last.safetensors");
  ranks[1]->kill(SIGTERM);
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 143) << rank->err();
  EXPECT_THAT(ranks[0]->err(), HasSubstr("stopped by SIGTERM"));
  EXPECT_GT(last("run").state.step, 2);
}

TEST_F(DistributedTraining, MistakesAreUsageErrors) {
  prepare_tokens();
  {
    RankProcess rank(program(lm_words("run", 5)), {"WORLD_SIZE=2", "RANK=0"}, root_ / "output");
    EXPECT_EQ(rank.wait(), 2);
    EXPECT_THAT(rank.err(), HasSubstr("no MASTER_ADDR"));
  }
  const Processes ranks = start(2, lm_words("run", 5, "", 1));
  EXPECT_EQ(ranks[0]->wait(), 2);
  EXPECT_THAT(ranks[0]->err(), HasSubstr("a batch of 1 cannot be shared by 2 processes"));
  EXPECT_NE(ranks[1]->wait(), 0);
  const Processes whole =
      start(2, lm_words("run", 5, "--mixer softmax_attention --dropout 0 --share tokens"));
  EXPECT_EQ(whole[0]->wait(), 2);
  EXPECT_THAT(whole[0]->err(), HasSubstr("--share tokens needs mixers whose sequences can be cut"));
  EXPECT_EQ(whole[1]->wait(), 2);
  const Processes narrow = start(3, lm_words("run", 5, "--dropout 0 --share tokens --conv-width 13"));
  for (const auto& rank : narrow) EXPECT_EQ(rank->wait(), 2);
  EXPECT_THAT(narrow[0]->err(), HasSubstr("3 processes would have 11 tokens of a sequence of 33, the "
                                          "convolutions need 12 each"));
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

TEST_F(DistributedTraining, RanksWithOtherSettingsAreRefused) {
  prepare_tokens();
  const int port = free_port();
  RankProcess first(program(lm_words("run", 5)), rank_variables(0, 2, port), root_ / "first");
  RankProcess second(program(lm_words("run", 6)), rank_variables(1, 2, port), root_ / "second");
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(first.err(), HasSubstr("the recipe is not the same on ranks 0 and 1"));
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

}  // namespace
}  // namespace prism
