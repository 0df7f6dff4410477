#include "prism/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/text/stream_decoder.h"
#include "prism/text/tokenizer_training.h"
#include "support/error_of.h"
#include "text/tokenizer_fixture.h"

namespace prism {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// The file of a small tokenizer, trained once for each kind.
const std::string& trained(TokenizerKind kind) {
  static std::map<TokenizerKind, std::string> files;
  set_log_level(LogLevel::kQuiet);
  std::string& content = files[kind];
  if (content.empty()) {
    const auto trainer = make_tokenizer_trainer(kind);
    trainer->add(training_text());
    content = trainer->train(kind == TokenizerKind::kBpe ? 400 : 420);
  }
  return content;
}

std::unique_ptr<Tokenizer> load(const std::string& name, const std::string& content) {
  const fs::path path = fs::path(testing::TempDir()) / name;
  write_file(path, content);
  return load_tokenizer(path.string());
}

std::unique_ptr<Tokenizer> tokenizer_of(TokenizerKind kind) {
  return load(kind == TokenizerKind::kBpe ? "small.json" : "small.model", trained(kind));
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

/// Leaves out the control token's text where the tokenizer does not read it.
void expect_round_trips(Tokenizer& tokenizer) {
  for (const std::string& text : hard_texts()) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_EQ(streamed(tokenizer, ids), text);
    for (const int32_t id : ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, tokenizer.vocabulary_size());
    }
  }
}

TEST(ByteTokenizer, IdsAreTheBytes) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_THAT(tokenizer->encode("A\xFF"), ElementsAre(65, 255));
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->bytes_of(256), "");
  expect_round_trips(*tokenizer);
}

TEST(Tokenizers, EveryTextComesBack) {
  for (const TokenizerKind kind :
       {TokenizerKind::kBpe, TokenizerKind::kSentencePieceBpe, TokenizerKind::kUnigram}) {
    SCOPED_TRACE(enum_name(kind));
    expect_round_trips(*tokenizer_of(kind));
  }
}

TEST(Tokenizers, ByteLevelTakesWhatIsNotUtf8) {
  const auto tokenizer = tokenizer_of(TokenizerKind::kBpe);
  const std::string broken = "the \xFF\xFE dog \xE6\x97 and \xC3";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(broken)), broken);
}

TEST(Tokenizers, TrainingTwiceGivesTheSameFile) {
  for (const TokenizerKind kind : {TokenizerKind::kBpe, TokenizerKind::kUnigram}) {
    const auto trainer = make_tokenizer_trainer(kind);
    trainer->add(training_text());
    EXPECT_EQ(trainer->train(kind == TokenizerKind::kBpe ? 400 : 420), trained(kind)) << enum_name(kind);
  }
}

TEST(Tokenizers, FrequentWordsBecomeOneToken) {
  const auto tokenizer = tokenizer_of(TokenizerKind::kBpe);
  EXPECT_EQ(tokenizer->encode(" the").size(), 1U);
  EXPECT_LT(tokenizer->encode(training_text()).size(), training_text().size() / 2);
}

TEST(Tokenizers, AnAddedTokenIsFoundInTheText) {
  const auto tokenizer = tokenizer_of(TokenizerKind::kBpe);
  const int32_t end = tokenizer->end_of_document();
  EXPECT_EQ(end, tokenizer->vocabulary_size() - 1);
  EXPECT_THAT(tokenizer->encode("a<|endoftext|>"), ElementsAre('a', end));
}

TEST(Tokenizers, NfcWhereTheFileAsks) {
  auto json = nlohmann::ordered_json::parse(trained(TokenizerKind::kBpe));
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = load("nfc.json", json.dump());
  EXPECT_EQ(tokenizer->encode("cafe\xCC\x81"), tokenizer->encode("caf\xC3\xA9"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("e\xCC\x81\xFF")), "\xC3\xA9\xFF");
}

TEST(Tokenizers, LlamaAndQwenCutDigitsDifferently) {
  const auto ids_with = [&](const char* pattern) {
    auto json = nlohmann::ordered_json::parse(trained(TokenizerKind::kBpe));
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return load("digits.json", json.dump())->encode(" 12345");
  };
  const auto whole = tokenizer_of(TokenizerKind::kBpe)->encode(" 12345");
  EXPECT_EQ(whole.size(), 1U) << "it was learnt as a word";
  EXPECT_EQ(ids_with("\\p{N}|[^\\p{N}]+").size(), 6U);
  EXPECT_NE(ids_with("\\p{N}{1,3}|[^\\p{N}]+"), whole);
}

TEST(Tokenizers, WhatIsNotSupportedIsNamed) {
  const auto error_with = [&](const std::function<void(nlohmann::ordered_json&)>& edit) {
    auto json = nlohmann::ordered_json::parse(trained(TokenizerKind::kBpe));
    edit(json);
    return error_of([&] { load("edited.json", json.dump()); });
  };
  EXPECT_THAT(error_with([](auto& json) {
                json["normalizer"] = {{"type", "Lowercase"}};
              }),
              HasSubstr("normalizer Lowercase is not supported"));
  EXPECT_THAT(error_with([](auto& json) { json["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(error_with([](auto& json) { json["model"]["byte_fallback"] = true; }),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(error_with([](auto& json) { json["pre_tokenizer"]["add_prefix_space"] = true; }),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(error_with([](auto& json) { json["added_tokens"][0]["lstrip"] = true; }), HasSubstr("lstrip"));
  EXPECT_THAT(error_with([](auto& json) { json["model"]["merges"].push_back("x"); }), HasSubstr("one side"));
  EXPECT_THAT(error_with([](auto& json) { json["model"].erase("vocab"); }), HasSubstr("vocab"));
  EXPECT_THAT(error_of([] { load("text.json", "[]"); }), HasSubstr("is not a JSON object"));
  EXPECT_THAT(error_of([] { load("text.model", "no model"); }), HasSubstr("is no SentencePiece model"));
  EXPECT_THAT(error_of([] { load_tokenizer("tokens.txt"); }), HasSubstr("neither bytes nor"));
}

TEST(Tokenizers, AFolderKnowsItsTokenizer) {
  const fs::path folder = fs::path(testing::TempDir()) / "prism-tokenizer-folder";
  fs::create_directories(folder);
  const auto tokenizer = tokenizer_of(TokenizerKind::kBpe);
  save_tokenizer(*tokenizer, folder);
  EXPECT_EQ(load_tokenizer_in(folder, tokenizer->fingerprint())->encode("the dog"),
            tokenizer->encode("the dog"));
  write_file(folder / "tokenizer.json", std::string(tokenizer->file_content()) + "\n");
  EXPECT_THAT(error_of([&] { load_tokenizer_in(folder, tokenizer->fingerprint()); }),
              HasSubstr("was made with"));
}

TEST(StreamDecoder, WaitsForWholeCharactersAndReplacesWhatIsNone) {
  const auto tokenizer = load_tokenizer("bytes");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push('a'),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(TokenizerTraining, SaysWhatCannotBe) {
  EXPECT_THAT(error_of([] { make_tokenizer_trainer(TokenizerKind::kBpe)->train(256); }),
              HasSubstr("no room"));
  EXPECT_THAT(error_of([] { make_tokenizer_trainer(TokenizerKind::kUnigram)->train(300); }),
              HasSubstr("SentencePiece could not"));
}

}  // namespace
}  // namespace prism
