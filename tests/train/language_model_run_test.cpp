#include "prism/train/language_model_run.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "text/small_tokens.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string counting_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcdefghij klmnopqrst\n";
  return text;
}

/// A small training in a fresh folder.
struct SmallRun {
  explicit SmallRun(const std::string& name, const std::string& updates = "40")
      : root(fs::path(testing::TempDir()) / ("prism-lm-" + name)) {
    set_log_level(LogLevel::kQuiet);
    fs::remove_all(root);
    const fs::path tokens = small_tokens("lm-tokens-" + name, counting_text());
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, std::string>>{{"data.tokens", tokens.string()},
                                                          {"data.length", "32"},
                                                          {"model.width", "32"},
                                                          {"model.blocks", "1"},
                                                          {"model.ffn_width", "48"},
                                                          {"model.dropout", "0.1"},
                                                          {"mixer.heads", "2"},
                                                          {"mixer.solver_rank", "0"},
                                                          {"train.updates", updates},
                                                          {"train.batch_size", "8"},
                                                          {"train.warmup", "5"},
                                                          {"train.learning_rate", "0.01"},
                                                          {"train.validate_every", "10"},
                                                          {"train.out", root.string()}})
      recipe.settings.set_text(key, value, "test");
  }
  LanguageModelRecipe recipe;
  fs::path root;
};

std::map<std::string, at::Tensor> tensors(const fs::path& root) {
  return read_checkpoint(root / "checkpoints" / "last.safetensors").tensors;
}

void expect_equal(const fs::path& a, const fs::path& b) {
  const auto left = tensors(a), right = tensors(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
}

TEST(LanguageModelTraining, LearnsAndCanBeOpened) {
  SmallRun small("learns", "120");
  const LanguageModelOutcome outcome = train_language_model(small.recipe, {});
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_LT(outcome.valid.at("bits_per_byte"), 1.0) << "the letters follow each other";
  EXPECT_EQ(outcome.tokens, 120 * 8 * 32);
  const LanguageModelRun run = open_language_model(small.root, c10::Device(c10::kCPU));
  EXPECT_EQ(run.tokenizer->fingerprint(), "bytes");
  EXPECT_EQ(run.recipe->model.model.width, 32);
  EXPECT_EQ(parameter_count(*run.model), outcome.parameters);
  EXPECT_TRUE(fs::exists(small.root / "results.json"));
}

/// tests/apps interrupts and kills it, too.
TEST(LanguageModelTraining, TheSameRecipeGivesTheSameBits) {
  SmallRun first("first"), second("second");
  train_language_model(first.recipe, {});
  train_language_model(second.recipe, {});
  expect_equal(first.root, second.root);
}

TEST(LanguageModelTraining, CheckpointedActivationsGiveTheSameBits) {
  for (const char* precision : {"fp32", "bf16"}) {
    SmallRun all("keeps-all"), few("keeps-few");
    for (SmallRun* run : {&all, &few}) run->recipe.settings.set_text("train.precision", precision, "test");
    few.recipe.settings.set_text("train.activation_checkpointing", "true", "test");
    train_language_model(all.recipe, {});
    train_language_model(few.recipe, {});
    expect_equal(all.root, few.root);
  }
}

TEST(LanguageModelTraining, FaultsAreNamed) {
  const auto error_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  LanguageModelRecipe none;
  none.train.out = (fs::path(testing::TempDir()) / "prism-lm-none").string();
  EXPECT_THAT(error_of([&] { train_language_model(none, {}); }), HasSubstr("--tokens names a folder"));
  SmallRun small("faults", "2");
  small.recipe.data.length = 100'000;
  EXPECT_THAT(error_of([&] { train_language_model(small.recipe, {}); }), HasSubstr("lower --length"));
  EXPECT_FALSE(fs::exists(small.root)) << "nothing is written before everything is known to fit";
}

}  // namespace
}  // namespace prism
