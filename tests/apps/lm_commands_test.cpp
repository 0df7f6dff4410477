// `prism lm ...` as a user runs it, from a text to generated text.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/process.h"
#include "prism/train/checkpoint.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class LmCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("prism-lm-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the cat sat on the mat, the dog lay on the log.\n";
    write_file(path("text.txt"), text);
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  int run(const std::vector<std::string>& words) {
    const Process process(words, root_ / "output");
    const int status = process.wait();
    out_ = process.out(), err_ = process.err();
    return status;
  }
  nlohmann::json json_of(std::vector<std::string> words) {
    words.insert(words.end(), {"--json", "--quiet"});
    EXPECT_EQ(run(words), 0) << err_;
    return nlohmann::json::parse(out_, nullptr, false);
  }
  void prepare() {
    ASSERT_EQ(
        run({"lm", "tokenizer", "train", path("text.txt"), "--vocabulary", "270", "--out", path("t.json")}),
        0)
        << err_;
    ASSERT_EQ(run({"lm", "prepare", path("text.txt"), "--format", "lines", "--tokenizer", path("t.json"),
                   "--out", path("tokens")}),
              0)
        << err_;
  }
  std::vector<std::string> train_words(const std::string& out, const std::string& updates = "60") const {
    return {"lm",
            "train",
            "--tokens",
            path("tokens"),
            "--out",
            path(out),
            "--width",
            "32",
            "--blocks",
            "1",
            "--ffn-width",
            "48",
            "--heads",
            "2",
            "--length",
            "32",
            "--batch-size",
            "8",
            "--warmup",
            "5",
            "--learning-rate",
            "0.01",
            "--dropout",
            "0.1",
            "--validate-every",
            "20",
            "--updates",
            updates,
            "--checkpoint-steps",
            "7",
            "--threads",
            "1"};
  }
  std::map<std::string, at::Tensor> tensors(const std::string& out) const {
    return read_checkpoint(root_ / out / "checkpoints" / "last.safetensors").tensors;
  }
  void expect_equal_tensors(const std::string& a, const std::string& b) const {
    const auto left = tensors(a), right = tensors(b);
    ASSERT_EQ(left.size(), right.size());
    for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
  }

  /// At most a minute.
  void wait_for(const std::string& file) const {
    for (int i = 0; i < 12'000 && !fs::exists(root_ / file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(fs::exists(root_ / file));
  }

  /// Killed at some step after the first checkpoint inside a round.
  void train_and_kill(const std::string& out) const {
    const Process process(train_words(out), root_ / "output");
    wait_for(out + "/checkpoints/last.safetensors");
    process.kill(SIGKILL);
    process.wait();
  }

  fs::path root_;
  std::string out_, err_;
};

TEST_F(LmCommands, FromTextToText) {
  prepare();
  const auto shown = json_of({"lm", "tokenizer", "show", path("t.json"), "--text", path("text.txt")});
  EXPECT_EQ(shown["vocabulary"], 270);
  EXPECT_EQ(shown["end_of_document"], 269);
  EXPECT_LT(shown["ids"].size(), shown["bytes"].get<size_t>() / 2);
  ASSERT_EQ(run(train_words("run")), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("parameters"));
  const auto evaluated = json_of({"lm", "evaluate", path("run"), "--tokens", path("tokens")});
  const auto& figures = evaluated["text"][path("tokens")];
  EXPECT_LT(figures["bits_per_byte"].get<double>(), 2);
  EXPECT_EQ(figures["context"], 32);
  EXPECT_EQ(figures["stride"], 16);
  const std::vector<std::string> generate = {"lm",           "generate", path("run"), "--prompt", "the cat",
                                             "--max-tokens", "12",       "--seed",    "3"};
  const auto made = json_of(generate);
  EXPECT_EQ(made["texts"][0]["text"], json_of(generate)["texts"][0]["text"]);
  EXPECT_LE(made["texts"][0]["tokens"], 12);
  auto rounded = generate;
  rounded.insert(rounded.end(), {"--precision", "bf16"});
  EXPECT_LE(json_of(rounded)["texts"][0]["tokens"], 12);
}

/// A stop text is one flag's value as it is: commas do not cut it.
TEST_F(LmCommands, StopsAtATextWithAComma) {
  prepare();
  ASSERT_EQ(run(train_words("run")), 0) << err_;
  const std::vector<std::string> generate = {
      "lm", "generate", path("run"), "--prompt", "the cat", "--max-tokens", "60", "--temperature", "0"};
  const std::string whole = json_of(generate)["texts"][0]["text"];
  const size_t comma = whole.find(", ");
  ASSERT_NE(comma, std::string::npos) << whole;
  auto stopping = generate;
  stopping.insert(stopping.end(), {"--stop", "no such text", "--stop", whole.substr(comma, 3)});
  const auto stopped = json_of(stopping)["texts"][0];
  EXPECT_EQ(stopped["text"], whole.substr(0, comma));
  EXPECT_EQ(stopped["reason"], "stop_text");
  stopping.back() = "no," + whole.substr(comma + 1, 2);  // neither of its halves counts
  EXPECT_EQ(json_of(stopping)["texts"][0]["text"], whole);
  stopping.back() = "";
  EXPECT_EQ(run(stopping), 2);
  EXPECT_THAT(err_, HasSubstr("--stop has an empty text"));
}

TEST_F(LmCommands, TheTinySizeLearnsTinyShakespeare) {
  const std::string text = PRISM_SHARED_DIR "/data/lm/tinyshakespeare.txt";
  if (!fs::exists(text)) GTEST_SKIP() << "skipped: " << text << " is absent";
  ASSERT_EQ(run({"lm", "prepare", text, "--out", path("tokens")}), 0) << err_;
  const auto json = json_of({"lm",
                             "train",
                             "--tokens",
                             path("tokens"),
                             "--out",
                             path("run"),
                             "--size",
                             "tiny",
                             "--length",
                             "128",
                             "--batch-size",
                             "8",
                             "--valid-share",
                             "0.01",
                             "--validate-every",
                             "60",
                             "--updates",
                             "60",
                             "--learning-rate",
                             "0.003",
                             "--warmup",
                             "10"});
  // Bytes drawn from their own frequencies would take 4.78 bits.
  EXPECT_LT(json["valid"]["bits_per_byte"].get<double>(), 3.9);
}

TEST_F(LmCommands, TasksAreRead) {
  prepare();
  ASSERT_EQ(run(train_words("run", "20")), 0) << err_;
  write_file(path("last.jsonl"), "{\"context\":\"the cat sat on the\",\"continuation\":\"mat\"}\n");
  write_file(path("choice.jsonl"),
             "{\"query\":\"Question: who?\",\"choices\":[\"cat\",\"dog\"],\"gold\":1}\n");
  const auto json = json_of({"lm", "evaluate", path("run"), "--completions", path("last.jsonl"), "--choices",
                             path("choice.jsonl")});
  EXPECT_EQ(json["completions"][path("last.jsonl")]["examples"], 1);
  EXPECT_GT(json["completions"][path("last.jsonl")]["perplexity"], 1);
  EXPECT_TRUE(json["choices"][path("choice.jsonl")].contains("normalised_accuracy"));
  write_file(path("schema.jsonl"),
             "{\"context_options\":[\"the cat\",\"the mat\"],\"continuation\":\"sat.\",\"gold\":0}\n");
  const auto forms = json_of(
      {"lm", "evaluate", path("run"), "--endings", path("choice.jsonl"), "--schemas", path("schema.jsonl")});
  EXPECT_EQ(forms["endings"][path("choice.jsonl")]["examples"], 1);
  EXPECT_EQ(forms["schemas"][path("schema.jsonl")]["examples"], 1);
  EXPECT_EQ(run({"lm", "evaluate", path("run"), "--schemas", path("choice.jsonl")}), 1);
  EXPECT_THAT(err_, HasSubstr("choice.jsonl object 1: "));
  EXPECT_THAT(err_, HasSubstr("context_options"));
  const auto recall = json_of({"lm", "evaluate", path("run"), "--recall", "needle,pairs", "--recall-lengths",
                               "120,300", "--recall-examples", "5"});
  ASSERT_EQ(recall["recall"].size(), 4U);
  EXPECT_EQ(recall["recall"]["pairs of 300"]["examples"], 5);
  EXPECT_EQ(recall["recall"]["needle of 120"]["accuracy_by_depth"].size(), 5U);
  EXPECT_GT(recall["recall"]["needle of 120"]["nats_per_token"], 0);
  EXPECT_EQ(run({"lm", "evaluate", path("run"), "--recall", "needel"}), 2);
  EXPECT_THAT(err_, HasSubstr("no --recall task is called \"needel\" (did you mean \"needle\"?)"));
  EXPECT_EQ(run({"lm", "evaluate", path("run"), "--recall", "pairs", "--recall-lengths", "9"}), 2);
  EXPECT_THAT(err_, HasSubstr("a length of 9 is too short"));
  EXPECT_EQ(run({"lm", "evaluate", path("run"), "--recall", "pairs", "--recall-lengths", ""}), 2);
  EXPECT_THAT(err_, HasSubstr("--recall needs --recall-lengths"));
  write_file(path("choice.jsonl"), "{\"query\":\"q\",\"choices\":[\"a\"],\"gold\":1}\n");
  EXPECT_EQ(run({"lm", "evaluate", path("run"), "--choices", path("choice.jsonl")}), 1);
  EXPECT_THAT(err_, HasSubstr("gold is 1, there are 1 choices"));
}

TEST_F(LmCommands, AKilledRunGoesOnBitForBit) {
  prepare();
  ASSERT_EQ(run(train_words("whole")), 0) << err_;
  train_and_kill("killed");
  ASSERT_EQ(run({"lm", "train", "--resume", path("killed"), "--threads", "1"}), 0) << err_;
  expect_equal_tensors("whole", "killed");
}

/// A setting of memory alone: it may begin in the middle, and the run's recipe says so from then on.
TEST_F(LmCommands, AResumedRunMayCheckpointActivations) {
  prepare();
  ASSERT_EQ(run(train_words("whole")), 0) << err_;
  train_and_kill("killed");
  ASSERT_EQ(run({"lm", "train", "--resume", path("killed"), "--threads", "1", "--activation-checkpointing"}),
            0)
      << err_;
  expect_equal_tensors("whole", "killed");
  EXPECT_THAT(read_file(path("killed/config.toml")), HasSubstr("activation_checkpointing = true"));
}

TEST_F(LmCommands, AnInterruptedRunSaysHowItGoesOn) {
  prepare();
  const Process process(train_words("run", "100000"), root_ / "output");
  wait_for("run/checkpoints/last.safetensors");
  process.kill(SIGINT);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_THAT(process.err(), HasSubstr("prism lm train --resume"));
}

TEST_F(LmCommands, AFamilyOfCommandsListsItsOwn) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"lm"}, {"lm", "--help"}}) {
    EXPECT_EQ(run(words), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("lm generate"));
    EXPECT_THAT(out_, Not(HasSubstr("recommend ")));
  }
}

TEST_F(LmCommands, MistakesAreUsageErrors) {
  EXPECT_EQ(run({"lm", "trian"}), 2);
  EXPECT_THAT(err_, HasSubstr("lm train"));
  EXPECT_EQ(run({"lm", "prepare", path("text.txt")}), 2);
  EXPECT_THAT(err_, HasSubstr("--out names"));
  EXPECT_EQ(run({"lm", "train"}), 2);
  EXPECT_EQ(run({"lm", "evaluate", path("text.txt")}), 2);
  prepare();
  ASSERT_EQ(run(train_words("run", "2")), 0) << err_;
  EXPECT_EQ(run({"lm", "train", "--resume", path("run"), "--updates", "9"}), 2);
  EXPECT_THAT(err_, HasSubstr("cannot change train.updates"));
  EXPECT_EQ(run({"info", path("run")}), 2);
  EXPECT_THAT(err_, HasSubstr("recipe of a language model"));
}

}  // namespace
}  // namespace prism
