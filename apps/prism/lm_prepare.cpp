// prism lm prepare FILES: texts to a folder of tokens.
#include <fmt/format.h>

#include "commands.h"
#include "log_json.h"
#include "prism/core/text.h"
#include "prism/text/prepare.h"

namespace prism::cli {
namespace {

class LmPrepareCommand final : public Command {
 public:
  LmPrepareCommand() {
    settings_.bind("prepare", config_);
    settings_.bind("documents", documents_);
  }

  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("FILES", files_, "text or JSON lines; plain, gzip or zstd")->required();
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    const PrepareOutcome outcome = prepare_tokens(files_, config_, documents_);
    if (outcome.signal) return 128 + outcome.signal;
    const TokenIndex& index = outcome.index;
    if (globals.json)
      fmt::print("{}", dump({{"folder", config_.out},
                             {"tokenizer", index.tokenizer},
                             {"vocabulary", index.vocabulary},
                             {"documents", index.documents},
                             {"bytes", index.bytes},
                             {"tokens", index.tokens},
                             {"shards", index.shards.size()}}));
    else
      fmt::print("{}: {}, {} of text, {} tokens of {} in {}\n", config_.out,
                 counted(index.documents, "document", "documents"), format_bytes(index.bytes),
                 with_commas(index.tokens), index.tokenizer,
                 counted(static_cast<int64_t>(index.shards.size()), "file", "files"));
    return 0;
  }

 private:
  PrepareConfig config_;
  DocumentConfig documents_;
  Settings settings_;
  SettingFlags flags_;
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Command> make_lm_prepare() { return std::make_unique<LmPrepareCommand>(); }

}  // namespace prism::cli
