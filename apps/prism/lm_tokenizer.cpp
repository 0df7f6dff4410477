// prism lm tokenizer train|show: learn a tokenizer from texts; what one is and does.
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "log_json.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"
#include "prism/text/documents.h"
#include "prism/text/tokenizer.h"
#include "prism/text/tokenizer_training.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

struct TrainingConfig {
  TokenizerKind kind = TokenizerKind::kBpe;
  int64_t vocabulary = 8192;
  std::string out = {};
  static constexpr auto fields = std::tuple{
      Field{"kind", &TrainingConfig::kind, Any{}, "",
            "train: byte-level BPE as a tokenizer.json, or a model of the SentencePiece library"},
      Field{"vocabulary", &TrainingConfig::vocabulary, Range{257, 1e7}, "tokens", "train: at most"},
      Field{"out", &TrainingConfig::out, Any{}, "", "train: the file to write"}};
};

class LmTokenizerCommand final : public Command {
 public:
  LmTokenizerCommand() {
    settings_.bind("tokenizer", config_);
    settings_.bind("documents", documents_);
  }

  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("ACTION", action_, "train or show")->required()->check(CLI::IsMember({"train", "show"}));
    app.add_option("FILES", files_, "train: text files; show: bytes, a tokenizer.json or a .model");
    app.add_option("--text", text_, "show: also the tokens of this file");
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    if (action_ == "train")
      train(globals.json);
    else
      show(globals.json);
    return 0;
  }

 private:
  void train(bool json) const {
    if (files_.empty()) usage_error("lm tokenizer train: no text file given");
    if (config_.out.empty()) usage_error("lm tokenizer train: --out names the file to write");
    const auto trainer = make_tokenizer_trainer(config_.kind);
    for (const std::string& file : files_)
      read_documents(file, documents_, [&](std::string_view text) {
        trainer->add(text);
        return true;
      });
    const std::string expected = config_.kind == TokenizerKind::kBpe ? ".json" : ".model";
    if (!config_.out.ends_with(expected))
      usage_error("lm tokenizer train: --out {} should end with {}", config_.out, expected);
    write_file(config_.out, trainer->train(config_.vocabulary));
    print(*load_tokenizer(config_.out), config_.out, json);
  }

  void show(bool json) const {
    if (files_.size() != 1) usage_error("lm tokenizer show: takes one tokenizer, not {}", files_.size());
    print(*load_tokenizer(files_[0]), files_[0], json);
  }

  void print(Tokenizer& tokenizer, const std::string& name, bool json) const {
    ordered_json result{{"tokenizer", name},
                        {"fingerprint", tokenizer.fingerprint()},
                        {"vocabulary", tokenizer.vocabulary_size()},
                        {"end_of_document", tokenizer.end_of_document()}};
    std::string text = fmt::format("{}: {} tokens, {} ends a document ({})\n", name,
                                   with_commas(tokenizer.vocabulary_size()), tokenizer.end_of_document(),
                                   tokenizer.fingerprint());
    if (!text_.empty()) {
      const std::string content = read_file(text_);
      const std::vector<int32_t> ids = tokenizer.encode(content);
      result["bytes"] = content.size();
      result["ids"] = ids;
      text +=
          fmt::format("{}: {} bytes, {} tokens\n", text_, with_commas(static_cast<int64_t>(content.size())),
                      with_commas(static_cast<int64_t>(ids.size())));
      for (const int32_t id : ids)
        text += fmt::format("{:>8} {}\n", id,
                            ordered_json(tokenizer.bytes_of(id))
                                .dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    }
    fmt::print("{}", json ? dump(result) : text);
  }

  TrainingConfig config_;
  DocumentConfig documents_;
  Settings settings_;
  SettingFlags flags_;
  std::string action_, text_;
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Command> make_lm_tokenizer() { return std::make_unique<LmTokenizerCommand>(); }

}  // namespace prism::cli
