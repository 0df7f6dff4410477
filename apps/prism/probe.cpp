// prism probe TASK|all: what one mixer learns of the synthetic tasks.
#include "prism/train/probe.h"

#include <algorithm>

#include "commands.h"
#include "log_json.h"
#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "prism/ops/device.h"
#include "table.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

class ProbeCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>& arguments) override {
    if (const std::string mixer = peek_argument(arguments, "--mixer"); !mixer.empty()) mixer_ = mixer;
    std::vector<std::string> names(EnumNames<ProbeTask>::names.begin(), EnumNames<ProbeTask>::names.end());
    names.emplace_back("all");
    app.add_option("TASK", task_, "which probe")->required()->check(CLI::IsMember(names));
    seed_given_ = !peek_argument(arguments, "--seed").empty();
    flags_.declare(app, ProbeRecipe(mixer_).settings);
  }

  int run(const Globals& globals) override {
    const std::vector<std::string> given = flags_.given();
    if (std::find(given.begin(), given.end(), "model.max_length") != given.end())
      usage_error(
          "probe: every sequence has --length tokens, so --max-length has nothing to cut; leave it out");
    const c10::Device device = require_device(globals.device);
    Table table({"probe", "sizes", "chance", "accuracy", "updates", "parameters", "seconds"}, 4);
    auto json = ordered_json::array();
    int status = 0;
    for (size_t i = 0; i < EnumNames<ProbeTask>::names.size(); ++i) {
      if (task_ != "all" && task_ != EnumNames<ProbeTask>::names[i]) continue;
      const auto task = static_cast<ProbeTask>(i);
      ProbeRecipe recipe(mixer_);
      flags_.apply(recipe.settings);
      if (seed_given_) recipe.settings.set("run.seed", globals.seed, "--seed");
      recipe.fit_to(task);
      const std::string sizes = probe_text(recipe.probe(task));
      info("{} of width {} on {}: {}", mixer_, recipe.model.model.width, enum_name(task), sizes);
      const ProbeResult result = train_probe(recipe, task, device, [](int64_t updates, double accuracy) {
        info("  {:>8} updates  validation {:.4f}", with_commas(updates), accuracy);
      });
      if (result.signal) {
        warn("stopped after {} updates of {}, which are lost; probes keep nothing",
             with_commas(result.updates), enum_name(task));
        status = 128 + result.signal;
        break;
      }
      table.add({std::string(enum_name(task)), sizes, result.chance, result.accuracy, result.updates,
                 result.parameters, result.seconds});
      json.push_back(result_json(recipe, task, sizes, result));
    }
    if (status == 0 || !json.empty())
      fmt::print("{}", globals.json ? dump(json) : table.to_string(TableFormat::kText));
    return status;
  }

 private:
  ordered_json result_json(const ProbeRecipe& recipe, ProbeTask task, const std::string& sizes,
                           const ProbeResult& result) const {
    return {{"task", std::string(enum_name(task))},
            {"mixer", mixer_},
            {"sizes", sizes},
            {"chance", result.chance},
            {"accuracy", result.accuracy},
            {"updates", result.updates},
            {"parameters", result.parameters},
            {"state_bytes", result.state_size * int64_t{sizeof(float)}},
            {"seconds", result.seconds},
            {"positions_per_second", result.positions_per_second},
            {"validation", result.curve},
            {"settings", ordered_json::parse(recipe.settings.to_json())}};
  }

  std::string mixer_ = "prism", task_;
  SettingFlags flags_;
  bool seed_given_ = false;
};

}  // namespace

std::unique_ptr<Command> make_probe() { return std::make_unique<ProbeCommand>(); }

}  // namespace prism::cli
