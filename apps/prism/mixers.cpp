// prism mixers [NAME]: the mixers, or the settings of one.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "prism/mixers/mixer.h"
#include "table.h"

namespace prism::cli {
namespace {

using nlohmann::ordered_json;

class MixersCommand final : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("NAME", name_, "a mixer; without it, all are listed");
  }

  int run(const Globals& globals) override {
    if (name_.empty())
      list(globals.json);
    else
      settings(globals.json);
    return 0;
  }

 private:
  static void list(bool json) {
    ordered_json all = ordered_json::object();
    Table table({"mixer", "what it is"}, 1);
    for (const std::string& name : mixer_names()) {
      all[name] = mixer_summary(name);
      table.add({name, mixer_summary(name)});
    }
    fmt::print("{}\n", json ? all.dump(2) : table.to_string(TableFormat::kText));
  }

  void settings(bool json) const {
    Settings settings;
    const auto spec = make_mixer_spec(name_);
    spec->bind(settings, "mixer");
    ordered_json all = ordered_json::object();
    Table table({"setting", "default", "range", "meaning"}, 1);
    for (const Setting& setting : settings.all()) {
      const std::string value = to_text(setting.default_value), range = setting.range_text();
      all[setting.name] = {{"default", value}, {"range", range}, {"help", setting.help}};
      table.add({setting.name, value, range, setting.help});
    }
    fmt::print("{}\n", json ? all.dump(2) : table.to_string(TableFormat::kText));
  }

  std::string name_;
};

}  // namespace

std::unique_ptr<Command> make_mixers() { return std::make_unique<MixersCommand>(); }

}  // namespace prism::cli
