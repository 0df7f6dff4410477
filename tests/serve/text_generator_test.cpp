#include "prism/serve/text_generator.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "serve/stop_texts.h"

namespace prism {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

struct Writer {
  explicit Writer(const std::string& mixer = "prism", int64_t width = 16) {
    LanguageModelSpec spec(mixer);
    Settings settings;
    spec.bind(settings);
    spec.model.width = width, spec.model.blocks = 2, spec.model.ffn_width = 24;
    model = std::make_shared<LanguageModel>(spec, 257, 5);
    model->embedding().data().mul_(20);
    model->eval();
  }
  TextGenerator generator(uint64_t seed = 1) { return TextGenerator(*model, *tokenizer, seed); }
  std::vector<std::vector<int32_t>> ids(TextGenerator& from, int64_t tokens) {
    std::vector<std::vector<int32_t>> all;
    for (const GeneratedText& text :
         from.generate({}, {.max_tokens = tokens, .stop = {}, .stop_at_end = false}))
      all.push_back(text.ids);
    return all;
  }

  std::shared_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
};

TEST(TextGenerator, TheSeedDecides) {
  Writer setup;
  const auto with_seed = [&](uint64_t seed) {
    TextGenerator generator = setup.generator(seed);
    generator.read({"abc"}, 100);
    return setup.ids(generator, 30);
  };
  EXPECT_EQ(with_seed(1), with_seed(1));
  EXPECT_NE(with_seed(1), with_seed(2));
}

TEST(TextGenerator, GreedyTextIsThatOfTheForwardPass) {
  for (const char* mixer : {"prism", "softmax_attention"}) {
    Writer setup(mixer);
    TextGenerator generator = setup.generator();
    generator.read({"hello"}, 2);
    const auto texts =
        generator.generate({.temperature = 0}, {.max_tokens = 8, .stop = {}, .stop_at_end = false});
    std::vector<int64_t> all = {256, 'h', 'e', 'l', 'l', 'o'};
    for (const int32_t id : texts[0].ids) {
      const at::Tensor h = setup.model->forward(at::tensor(all, at::kLong).unsqueeze(0), Packing::rows());
      EXPECT_EQ(setup.model->logits(h[0][-1]).argmax().item<int64_t>(), id) << mixer;
      all.push_back(id);
    }
  }
}

TEST(TextGenerator, ABatchWritesWhatEachPromptWouldAlone) {
  Writer setup;
  TextGenerator both = setup.generator();
  both.read({"a longer prompt", "b"}, 4);
  const SamplerConfig greedy{.temperature = 0};
  const GenerateConfig config{.max_tokens = 12, .stop = {}, .stop_at_end = false};
  const auto together = both.generate(greedy, config);
  for (const size_t i : {0U, 1U}) {
    TextGenerator alone = setup.generator();
    alone.read({i == 0 ? "a longer prompt" : "b"}, 100);
    EXPECT_EQ(alone.generate(greedy, config)[0].ids, together[i].ids);
  }
}

TEST(TextGenerator, ASavedStateGoesOnAsIfNothingHadHappened) {
  const fs::path file = fs::path(testing::TempDir()) / "prism-generator.safetensors";
  for (const char* mixer : {"prism", "prism,softmax_attention"}) {
    Writer setup(mixer);
    TextGenerator whole = setup.generator();
    whole.read({"one", "two more"}, 100);
    const auto expected = setup.ids(whole, 20);
    TextGenerator first = setup.generator();
    first.read({"one", "two more"}, 100);
    auto made = setup.ids(first, 8);
    first.save(file);
    TextGenerator second = setup.generator(99);
    second.load(file);
    const auto rest = setup.ids(second, 12);
    for (size_t i = 0; i < made.size(); ++i) made[i].insert(made[i].end(), rest[i].begin(), rest[i].end());
    EXPECT_EQ(made, expected) << mixer;
  }
  Writer wider("prism", 32), attention("softmax_attention");
  for (Writer* other : {&wider, &attention}) {
    TextGenerator generator = other->generator();
    try {
      generator.load(file);
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("does not fit"));
    }
  }
  write_file(file, "nonsense");
  TextGenerator generator = wider.generator();
  EXPECT_THROW(generator.load(file), Error);
}

TEST(TextGenerator, MoreCanBeReadInBetween) {
  Writer setup;
  TextGenerator whole = setup.generator(), parts = setup.generator();
  whole.read({"abcdef"}, 100);
  parts.read({"abc"}, 100);
  parts.read({"def"}, 1);
  EXPECT_EQ(setup.ids(whole, 10), setup.ids(parts, 10));
  EXPECT_THROW(parts.read({"a", "b"}, 1), Error);
  TextGenerator nothing = setup.generator();
  EXPECT_THROW(setup.ids(nothing, 1), Error);
}

TEST(TextGenerator, StreamsWhatItReturnsAndStopsWhenTold) {
  Writer setup;
  TextGenerator generator = setup.generator();
  generator.read({"x"}, 10);
  std::string streamed;
  int calls = 0;
  const auto texts = generator.generate({}, {.max_tokens = 50, .stop = {}, .stop_at_end = false},
                                        [&](size_t, const std::string& text) {
                                          streamed += text;
                                          return ++calls < 5;
                                        });
  EXPECT_EQ(texts[0].text, streamed);
  EXPECT_EQ(texts[0].reason, StopReason::kInterrupted);
  EXPECT_LT(texts[0].ids.size(), 50U);
}

TEST(StopTexts, HoldsBackWhatCouldBecomeOne) {
  StopTexts stops({"\n\n", "END"});
  EXPECT_EQ(stops.push("one\n"), "one");
  EXPECT_EQ(stops.push("two E"), "\ntwo ");
  EXPECT_EQ(stops.push("N"), "");
  EXPECT_EQ(stops.push("T"), "ENT");
  EXPECT_EQ(stops.push("x EN"), "x ");
  EXPECT_EQ(stops.push("D more"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("nothing"), "");
  StopTexts open({"END"});
  EXPECT_EQ(open.push("the EN"), "the ");
  EXPECT_EQ(open.finish(), "EN");
}

}  // namespace
}  // namespace prism
