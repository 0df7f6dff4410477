#include <algorithm>

#include "command.h"

namespace prism::cli {
namespace {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// The flag of a setting without its dashes: "heads", or "softmax-attention-heads" for one of several mixers,
/// whose sections are "mixer.NAME".
std::string flag_of(const std::string& section, const std::string& name) {
  constexpr std::string_view kMixer = "mixer.";
  return with_dashes(section.starts_with(kMixer) ? section.substr(kMixer.size()) + "-" + name : name);
}

std::string description(const Setting& setting) {
  std::string text = setting.help;
  if (!setting.unit.empty()) text += " (" + setting.unit + ")";
  const std::string range = setting.range_text();
  if (!range.empty()) text += " [" + range + "]";
  return text + " (default " + to_text(setting.default_value) + ")";
}

}  // namespace

void SettingFlags::declare(CLI::App& app, const Settings& settings) {
  for (const Setting& setting : settings.all()) {
    const std::string key = setting.section + "." + setting.name;
    const std::string flag = flag_of(setting.section, setting.name);
    if (app.get_option_no_throw("--" + flag)) continue;
    CLI::Option* option = nullptr;
    if (setting.type == "true or false")
      option = app.add_flag(fmt::format("--{0},!--no-{0}", flag), switches_[key]);
    else
      option = app.add_option("--" + flag, texts_[key])->type_name(setting.type);
    option->description(description(setting))->group("Settings [" + setting.section + "]");
    options_.emplace_back(key, option);
  }
}

void SettingFlags::apply(Settings& settings) const {
  for (const auto& [key, option] : options_) {
    if (option->count() == 0) continue;
    const size_t dot = key.rfind('.');
    const std::string where = "--" + with_dashes(flag_of(key.substr(0, dot), key.substr(dot + 1)));
    if (const auto text = texts_.find(key); text != texts_.end())
      settings.set_text(key, text->second, where);
    else
      settings.set(key, switches_.at(key), where);
  }
}

std::vector<std::string> SettingFlags::given() const {
  std::vector<std::string> keys;
  for (const auto& [key, option] : options_)
    if (option->count() > 0) keys.push_back(key);
  return keys;
}

std::string peek_argument(const std::vector<std::string>& arguments, const std::string& name) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == name && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].starts_with(name + "=")) return arguments[i].substr(name.size() + 1);
  }
  return "";
}

}  // namespace prism::cli
