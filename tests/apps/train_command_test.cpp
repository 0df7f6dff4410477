// `prism train` as a user runs it: a child process that is interrupted, killed, resumed and misused.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/process.h"
#include "prism/core/random.h"
#include "prism/train/checkpoint.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TrainCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("prism-cli-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    write_file(log(), log_text(0));
  }

  std::string log() const { return (root_ / "log.csv").string(); }
  /// 200 users walk through 50 items from random starts, `extra` new items at the end of each walk.
  static std::string log_text(int extra) {
    RandomStream random(5, "log");
    std::string text = "user_id,item_id,timestamp\n";
    for (int user = 0; user < 200; ++user) {
      const auto start = static_cast<int>(random.below(50));
      for (int t = 0; t < 30; ++t) text += fmt::format("u{},i{},{}\n", user, (start + t) % 50, 100 + t);
      for (int t = 0; t < extra; ++t) text += fmt::format("u{},new{},{}\n", user, t, 200 + t);
    }
    return text;
  }

  std::vector<std::string> train_words(const std::string& out, int epochs = 6) const {
    return {"train",        log(),        "--out",    (root_ / out).string(), "--width",
            "32",           "--blocks",   "1",        "--max-length",         "10",
            "--batch-size", "20",         "--epochs", std::to_string(epochs), "--warmup",
            "10",           "--patience", "0",        "--checkpoint-steps",   "3",
            "--threads",    "1"};
  }
  int run(const std::vector<std::string>& words) {
    const Process process(words, root_ / "output");
    const int status = process.wait();
    out_ = process.out(), err_ = process.err();
    return status;
  }
  std::map<std::string, at::Tensor> tensors(const std::string& out) const {
    return read_checkpoint(root_ / out / "checkpoints" / "last.safetensors").tensors;
  }
  void expect_equal_tensors(const std::string& a, const std::string& b) const {
    const auto left = tensors(a), right = tensors(b);
    ASSERT_EQ(left.size(), right.size());
    for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
  }
  /// The rows of metrics.jsonl without their times.
  std::string rows(const std::string& out) const {
    std::string text;
    std::istringstream file(read_file(root_ / out / "metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      json.erase("seconds");
      json.erase("positions_per_second");
      text += json.dump() + "\n";
    }
    return text;
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }

  fs::path root_;
  std::string out_, err_;
};

/// Starts or resumes until a run ends, killing it at random moments.
TEST_F(TrainCommand, KilledAtRandomMomentsItEndsWithTheSameBits) {
  ASSERT_EQ(run(train_words("whole")), 0) << err_;
  const auto started = std::chrono::steady_clock::now();
  ASSERT_EQ(run(train_words("timed")), 0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  RandomStream random(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
                      "kill");
  double patience = seconds;  // before a kill, at most
  for (int kills = 0, status = -1; status != 0;) {
    const bool saved = fs::exists(root_ / "killed" / "checkpoints" / "last.safetensors");
    if (!saved) fs::remove_all(root_ / "killed");  // killed before the first checkpoint: nothing to resume
    const Process process(
        saved ? std::vector<std::string>{"train", "--resume", path("killed"), "--threads", "1"}
              : train_words("killed"),
        root_ / "output");
    if (kills < 5) {
      std::this_thread::sleep_for(std::chrono::duration<double>(patience * (0.3 + 0.7 * random.uniform())));
      process.kill(SIGKILL);
    }
    status = process.wait();
    ASSERT_TRUE(status == 0 || status == -SIGKILL) << process.err();
    kills += status == -SIGKILL;
    if (status == 0 && kills < 2) {  // the machine got faster: once more, with earlier kills
      fs::remove_all(root_ / "killed");
      patience /= 2, status = -1;
    }
  }
  expect_equal_tensors("whole", "killed");
  EXPECT_EQ(rows("whole"), rows("killed"));
}

TEST_F(TrainCommand, SigtermSavesTellsHowToGoOnAndResumes) {
  const Process process(train_words("stopped", 100000), root_ / "output");
  while (!fs::exists(root_ / "stopped" / "checkpoints" / "best.safetensors"))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  process.kill(SIGTERM);
  EXPECT_EQ(process.wait(), 128 + SIGTERM);
  EXPECT_THAT(process.err(), HasSubstr("prism train --resume " + path("stopped")));
  const Checkpoint saved = read_checkpoint(root_ / "stopped" / "checkpoints" / "last.safetensors");
  EXPECT_EQ(run({"train", "--resume", path("stopped"), "--epochs", std::to_string(saved.state.epoch + 1)}), 0)
      << err_;
  EXPECT_THAT(err_, HasSubstr("resuming"));
  EXPECT_THAT(out_, HasSubstr("NDCG@10"));
}

TEST_F(TrainCommand, MisuseIsOneLineAndStatusTwo) {
  ASSERT_EQ(run(train_words("run")), 0) << err_;
  EXPECT_EQ(run(train_words("run")), 2);
  EXPECT_THAT(err_, HasSubstr("run folder " + path("run") + " exists; continue it with --resume"));
  EXPECT_EQ(run({"train", "--resume", path("run"), "--width", "64"}), 2);
  EXPECT_THAT(err_, HasSubstr("--resume cannot change model.width"));
  EXPECT_EQ(run({"train", "--resume", path("nowhere")}), 2);
  EXPECT_EQ(run({"train", log(), "--learning-rat", "1"}), 2);
  EXPECT_THAT(err_, HasSubstr("--learning-rate"));
  EXPECT_EQ(run({"train"}), 2);
  EXPECT_THAT(err_, HasSubstr("no data"));
}

TEST_F(TrainCommand, ADamagedCheckpointIsRefusedByName) {
  ASSERT_EQ(run(train_words("run")), 0) << err_;
  const fs::path file = root_ / "run" / "checkpoints" / "last.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_file(file, bytes);
  EXPECT_EQ(run({"train", "--resume", path("run")}), 1);
  EXPECT_THAT(err_, HasSubstr("last.safetensors: the checkpoint was damaged or edited"));
  EXPECT_EQ(run({"info", path("run")}), 0) << "info still says what there is";
  EXPECT_THAT(out_, HasSubstr("damaged or edited"));
}

TEST_F(TrainCommand, KilledBeforeTheFirstCheckpointStartsAgain) {
  ASSERT_EQ(run(train_words("whole", 2)), 0) << err_;
  ASSERT_EQ(run(train_words("killed", 2)), 0) << err_;
  for (const char* name : {"last", "best"})
    fs::remove(root_ / "killed/checkpoints" / (std::string(name) + ".safetensors"));
  EXPECT_EQ(run({"train", "--resume", path("killed"), "--threads", "1"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("starting from the beginning"));
  expect_equal_tensors("whole", "killed");
}

TEST_F(TrainCommand, ResumeRefusesAnEditedRecipeAndAnothersCheckpoint) {
  ASSERT_EQ(run(train_words("run", 1)), 0) << err_;
  const std::string config = read_file(root_ / "run/config.toml");
  std::string edited = config;
  edited.replace(edited.find("learning_rate = 0.001"), 21, "learning_rate = 5.000");
  write_file(root_ / "run/config.toml", edited);
  EXPECT_EQ(run({"train", "--resume", path("run"), "--epochs", "2"}), 1);
  EXPECT_THAT(err_, HasSubstr("learning_rate = 0.001, the run's config.toml says 5"));
  write_file(root_ / "run/config.toml", config);
  EXPECT_EQ(run({"train", "--resume", path("run"), "--epochs", "2"}), 0) << err_;
}

TEST_F(TrainCommand, WhatCannotBeValidatedIsRefusedBeforeTheFolderIsMade) {
  auto words = train_words("never");
  words.insert(words.end(), {"--metric", "NDGC@10"});
  EXPECT_EQ(run(words), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean \"NDCG@10\""));
  write_file(log(), "user_id,item_id,timestamp\nu1,a,1\nu1,b,2\nu2,a,1\nu2,b,2\n");
  EXPECT_EQ(run(train_words("never")), 1);
  EXPECT_THAT(err_, HasSubstr("no user has three interactions"));
  EXPECT_FALSE(fs::exists(root_ / "never"));
}

TEST_F(TrainCommand, OneProcessARunFolder) {
  ASSERT_EQ(run(train_words("run", 1)), 0) << err_;
  const int folder = ::open(path("run").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(folder, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run({"train", "--resume", path("run"), "--epochs", "2"}), 1);
  EXPECT_THAT(err_, HasSubstr("another process is training"));
  ::close(folder);
}

TEST_F(TrainCommand, LowerMeanRankIsBetter) {
  auto words = train_words("run", 3);
  words.insert(words.end(), {"--metric", "mean_rank"});
  ASSERT_EQ(run(words), 0) << err_;
  double best = std::numeric_limits<double>::infinity();
  std::istringstream file(read_file(root_ / "run/metrics.jsonl"));
  for (std::string line; std::getline(file, line);)
    if (const auto row = nlohmann::json::parse(line); row["kind"] == "epoch")
      best = std::min(best, row["valid"]["mean_rank"].get<double>());
  EXPECT_EQ(read_checkpoint(root_ / "run/checkpoints/best.safetensors").state.best_metric, best);
}

TEST_F(TrainCommand, DryRunWritesNothing) {
  auto words = train_words("dry");
  words.push_back("--dry-run");
  EXPECT_EQ(run(words), 0) << err_;
  EXPECT_FALSE(fs::exists(root_ / "dry"));
  EXPECT_THAT(err_, HasSubstr("an epoch of"));
  EXPECT_THAT(err_, HasSubstr("memory: about"));
  words.push_back("--json");
  EXPECT_EQ(run(words), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["epochs"], 6);
}

TEST_F(TrainCommand, FromContinuesOnANewerLogWithNewItems) {
  ASSERT_EQ(run(train_words("first")), 0) << err_;
  write_file(path("newer.csv"), log_text(4));
  ASSERT_EQ(
      run({"train", "--from", path("first"), "--file", path("newer.csv"), "--out", path("second"), "--json"}),
      0)
      << err_;
  EXPECT_THAT(err_, HasSubstr("4 new items"));
  const auto results = nlohmann::json::parse(out_);
  EXPECT_TRUE(results["test"]["model"].contains("HR@10"));
  EXPECT_EQ(tensors("second").at("model.item_embedding").size(0), 54);
}

TEST_F(TrainCommand, InfoShowsTheRunAsTextAndJson) {
  ASSERT_EQ(run(train_words("run")), 0) << err_;
  EXPECT_EQ(run({"info", path("run")}), 0);
  EXPECT_THAT(out_, HasSubstr("200 users, 50 items, 6,000 interactions"));
  EXPECT_EQ(run({"info", path("run"), "--json"}), 0);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["last"]["epoch"], 6);
  EXPECT_EQ(json["settings"]["model"]["width"], 32);
  EXPECT_TRUE(json["results"]["test"].contains("markov"));
}

/// Recipe, flags, checkpoint, resume and serving of a stack of two mixers.
TEST_F(TrainCommand, AHybridHasASectionAndFlagsForEachMixer) {
  std::vector<std::string> words = train_words("hybrid", 2);
  *(std::find(words.begin(), words.end(), "--blocks") + 1) = "2";
  for (const char* word : {"--mixer", "prism,mom", "--prism-steps", "1", "--mom-memories", "3"})
    words.emplace_back(word);
  ASSERT_EQ(run(words), 0) << err_;
  const std::string config = read_file(root_ / "hybrid" / "config.toml");
  EXPECT_THAT(config, HasSubstr("[mixer.prism]"));
  EXPECT_THAT(config, HasSubstr("memories = 3"));
  EXPECT_EQ(tensors("hybrid").at("model.block2.mixer.router_weight").size(0), 3);
  ASSERT_EQ(run({"train", "--resume", path("hybrid"), "--epochs", "3", "--threads", "1"}), 0) << err_;
  words[3] = path("whole"), *(std::find(words.begin(), words.end(), "--epochs") + 1) = "3";
  ASSERT_EQ(run(words), 0) << err_;
  expect_equal_tensors("hybrid", "whole");
  EXPECT_EQ(run({"recommend", path("hybrid"), "--items", "i1,i2"}), 0) << err_;
  EXPECT_EQ(run({"train", "--help", "--mixer", "prism,mom"}), 0);
  EXPECT_THAT(out_, HasSubstr("Settings [mixer.mom]"));
  EXPECT_THAT(out_, HasSubstr("--mom-top-k"));
  EXPECT_EQ(run({"train", (root_ / "hybrid" / "config.toml").string(), "--mixer", "prism"}), 2);
  EXPECT_THAT(err_, HasSubstr("--mixer prism does not fit the recipe of a prism,mom"));
}

}  // namespace
}  // namespace prism
