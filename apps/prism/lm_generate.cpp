// prism lm generate RUN: texts that go on from prompts, as they are made.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "commands.h"
#include "log_json.h"
#include "prism/core/clock.h"
#include "prism/core/error.h"
#include "prism/core/interrupt.h"
#include "prism/core/log.h"
#include "prism/ops/device.h"
#include "prism/serve/text_generator.h"
#include "prism/train/language_model_run.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

struct NumbersConfig {
  Precision precision = Precision::kFp32;
  static constexpr auto fields = std::tuple{Field{"precision", &NumbersConfig::precision, Any{}, "",
                                                  "bf16: matrix products in bfloat16, weights stay fp32"}};
};

class LmGenerateCommand final : public Command {
 public:
  LmGenerateCommand() {
    settings_.bind("generate", config_);
    settings_.bind("generate", numbers_);
    settings_.bind("sampler", sampler_);
  }

  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism lm train")->required();
    app.add_option("--prompt", prompts_, "text to go on from; given again: one more of a batch")
        ->allow_extra_args(false);
    app.add_option(
           "--stop", config_.stop,
           "text at which to stop, which is not printed; given again: one more. Taken as it is, commas "
           "included")
        ->allow_extra_args(false);
    app.add_option("--batch", batch_, "texts from the one prompt")->check(CLI::Range(1, 4096));
    app.add_option("--load-state", load_, "go on from a saved state; prompts are appended");
    app.add_option("--save-state", save_, "file for the state at the end");
    flags_.declare(app, settings_);
  }

  int run(const Globals& globals) override {
    flags_.apply(settings_);
    if (std::find(config_.stop.begin(), config_.stop.end(), "") != config_.stop.end())
      usage_error("lm generate: --stop has an empty text; give one to stop at");
    LanguageModelRun run = open_language_model(run_, require_device(globals.device));
    TextGenerator generator(*run.model, *run.tokenizer, static_cast<uint64_t>(globals.seed),
                            numbers_.precision);
    if (!load_.empty()) generator.load(load_);
    if (const auto prompts = all_prompts(generator.sequences()); !prompts.empty())
      generator.read(prompts, config_.prefill_chunk);
    const InterruptGuard interrupts;
    const bool streams = !globals.json && generator.sequences() == 1;
    const double started = steady_seconds();
    const auto texts = generator.generate(sampler_, config_, [&](size_t, const std::string& text) {
      if (streams) fmt::print("{}", text);
      std::fflush(stdout);
      return InterruptGuard::pending() == 0;
    });
    const double seconds = steady_seconds() - started;
    if (!save_.empty()) generator.save(save_);
    print(texts, seconds, globals.json, streams);
    const int signal = InterruptGuard::pending();
    return signal ? 128 + signal : 0;
  }

 private:
  /// One prompt a sequence; none where a loaded state goes on as it is.
  std::vector<std::string> all_prompts(size_t loaded) const {
    if (batch_ > 1 && prompts_.size() > 1)
      usage_error("lm generate: --batch {} takes one --prompt, not {}", batch_, prompts_.size());
    if (loaded > 0 && prompts_.empty()) return {};
    const std::string first = prompts_.empty() ? "" : prompts_[0];
    const size_t wanted = loaded > 0 ? loaded : static_cast<size_t>(batch_);
    if (prompts_.size() <= 1) return std::vector<std::string>(wanted, first);
    return prompts_;
  }

  void print(const std::vector<GeneratedText>& texts, double seconds, bool json, bool streamed) const {
    size_t tokens = 0;
    auto all = ordered_json::array();
    for (const GeneratedText& text : texts) {
      tokens += text.ids.size();
      all.push_back({{"text", text.text},
                     {"tokens", text.ids.size()},
                     {"ids", text.ids},
                     {"reason", std::string(enum_name(text.reason))}});
    }
    const double rate = static_cast<double>(tokens) / seconds;
    if (json) {
      fmt::print("{}", dump({{"texts", all}, {"seconds", seconds}, {"tokens_per_second", rate}}));
      return;
    }
    if (streamed) fmt::print("\n");
    for (size_t i = 0; !streamed && i < texts.size(); ++i) fmt::print("--- {}\n{}\n", i + 1, texts[i].text);
    info("{} tokens in {:.2f} s, {:.1f} a second", tokens, seconds, rate);
  }

  GenerateConfig config_;
  SamplerConfig sampler_;
  NumbersConfig numbers_;
  Settings settings_;
  SettingFlags flags_;
  std::string run_, load_, save_;
  std::vector<std::string> prompts_;
  int64_t batch_ = 1;
};

}  // namespace

std::unique_ptr<Command> make_lm_generate() { return std::make_unique<LmGenerateCommand>(); }

}  // namespace prism::cli
