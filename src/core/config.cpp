#include "prism/core/config.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"
#include "prism/core/toml.h"

namespace prism {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool plain_integer = text.find_first_not_of("-0123456789") == std::string::npos;
  return plain_integer ? text + ".0" : text;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}  // a JSON string is a TOML string

template <class T, class Format>
std::string list_text(const std::vector<T>& items, Format format) {
  std::string text;
  for (const T& item : items) text += (text.empty() ? "" : ", ") + format(item);
  return "[" + text + "]";
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

template <class T>
T parse_number(const std::string& text, const Setting& setting, std::string_view where) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    usage_error("{}: {} takes {} {}, not \"{}\"", where, setting.name,
                setting.type == "integers" ? "" : "one", setting.type, shortened(text));
  return value;
}

Value parse_text(const std::string& text, const Setting& setting, std::string_view where) {
  if (setting.type == "true or false") {
    if (text == "true" || text == "1" || text == "on" || text == "yes") return true;
    if (text == "false" || text == "0" || text == "off" || text == "no") return false;
    usage_error("{}: {} is true or false, not \"{}\"", where, setting.name, shortened(text));
  }
  if (setting.type == "integer") return parse_number<int64_t>(text, setting, where);
  if (setting.type == "number") return parse_number<double>(text, setting, where);
  if (setting.type == "list of text") return split(text);
  if (setting.type == "integers") {
    std::vector<int64_t> values;
    for (const std::string& part : split(text)) values.push_back(parse_number<int64_t>(part, setting, where));
    return values;
  }
  return text;
}

void check_range(double value, const Setting& setting, std::string_view where) {
  if (!(value >= setting.range.low && value <= setting.range.high))
    usage_error("{}: {} = {} is outside {}", where, setting.name, value, setting.range_text());
}

void check_value(const Value& value, const Setting& setting, std::string_view where) {
  if (const auto* integer = std::get_if<int64_t>(&value))
    check_range(static_cast<double>(*integer), setting, where);
  if (const auto* number = std::get_if<double>(&value)) check_range(*number, setting, where);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
    for (const int64_t item : *list) check_range(static_cast<double>(item), setting, where);
  const auto* name = std::get_if<std::string>(&value);
  if (name && !setting.choices.empty() &&
      std::find(setting.choices.begin(), setting.choices.end(), *name) == setting.choices.end())
    usage_error("{}: {} = \"{}\" is not one of {}{}", where, setting.name, shortened(*name),
                setting.range_text(), did_you_mean(*name, setting.choices));
}

/// The value as the setting's own alternative: integers become numbers, an empty list fits any list.
Value converted(const Value& value, const Setting& setting, std::string_view where) {
  if (value.index() == setting.default_value.index()) return value;
  const auto* integer = std::get_if<int64_t>(&value);
  if (integer && std::holds_alternative<double>(setting.default_value)) return static_cast<double>(*integer);
  const auto* strings = std::get_if<std::vector<std::string>>(&value);
  if (strings && strings->empty() && setting.type == "integers") return std::vector<int64_t>{};
  usage_error("{}: {} takes {}, not {}", where, setting.name, setting.type, to_text(value));
}

Value toml_value(const toml::node& node, std::string_view where, std::string_view key) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  const auto* array = node.as_array();
  if (array && !array->empty() && array->is_homogeneous<int64_t>()) {
    std::vector<int64_t> items;
    for (const auto& item : *array) items.push_back(item.as_integer()->get());
    return items;
  }
  if (array && (array->empty() || array->is_homogeneous<std::string>())) {
    std::vector<std::string> items;
    for (const auto& item : *array) items.push_back(item.as_string()->get());
    return items;
  }
  usage_error("{}: {} is neither a number, a text nor a list of one kind", where, key);
}

toml::table parsed_toml(std::string_view text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    usage_error("{} line {}: {}", name, error.source().begin.line, error.description());
  }
}

Value json_value(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (!json.empty() && json[0].is_number_integer()) return json.get<std::vector<int64_t>>();
  return json.get<std::vector<std::string>>();
}

nlohmann::ordered_json to_json_value(const Value& value) {
  return std::visit([](const auto& held) { return nlohmann::ordered_json(held); }, value);
}

}  // namespace

std::string to_text(const Value& value) {
  return std::visit(Overloaded{[](bool held) -> std::string { return held ? "true" : "false"; },
                               [](int64_t held) { return std::to_string(held); },
                               [](double held) { return number_text(held); },
                               [](const std::string& held) { return quoted(held); },
                               [](const std::vector<int64_t>& held) {
                                 return list_text(held, [](int64_t item) { return std::to_string(item); });
                               },
                               [](const std::vector<std::string>& held) { return list_text(held, quoted); }},
                    value);
}

std::string Setting::range_text() const {
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, " | "));
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high) return fmt::format("{}..{}", range.low, range.high);
  if (low) return fmt::format(">= {}", range.low);
  if (high) return fmt::format("<= {}", range.high);
  return "";
}

const Setting* Settings::find(std::string_view name) const {
  for (const Setting& setting : settings_)
    if (name == setting.name || name == setting.section + "." + setting.name) return &setting;
  return nullptr;
}

Setting& Settings::require(std::string_view name, std::string_view where) {
  if (const Setting* setting = find(name)) return const_cast<Setting&>(*setting);
  const bool dotted = name.find('.') != std::string_view::npos;
  std::vector<std::string> known;
  for (const Setting& setting : settings_)
    known.push_back(dotted ? setting.section + "." + setting.name : setting.name);
  usage_error("{}: unknown setting \"{}\"{}", where, shortened(name), did_you_mean(name, known));
}

void Settings::set(std::string_view name, const Value& value, std::string_view where) {
  Setting& setting = require(name, where);
  const Value fitting = converted(value, setting, where);
  check_value(fitting, setting, where);
  setting.assign(fitting);
  setting.assigned = true;
}

void Settings::set_text(std::string_view name, const std::string& text, std::string_view where) {
  set(name, parse_text(text, require(name, where), where), where);
}

void Settings::parse_toml(std::string_view text, const std::string& name) {
  const toml::table document = parsed_toml(text, name);
  const auto line_of = [&](const toml::node& node) {
    return fmt::format("{} line {}", name, node.source().begin.line);
  };
  // Sections may lie in sections: [mixer.prism] is a table of the table [mixer].
  const std::function<void(const std::string&, const toml::table&)> read = [&](const std::string& section,
                                                                               const toml::table& table) {
    for (const auto& [key, value] : table) {
      const std::string line = line_of(value), full = fmt::format("{}.{}", section, key.str());
      if (const toml::table* inner = value.as_table())
        read(full, *inner);
      else
        set(full, toml_value(value, line, full), line);
    }
  };
  for (const auto& [section, node] : document) {
    const toml::table* table = node.as_table();
    if (!table) usage_error("{}: {} stands outside a [section]", line_of(node), section.str());
    read(std::string(section.str()), *table);
  }
}

void Settings::read_toml(const std::filesystem::path& path) { parse_toml(read_file(path), path.string()); }

std::string Settings::to_toml() const {
  std::string text, section;
  for (const Setting& setting : settings_) {
    if (setting.section != section)
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section = setting.section);
    text += fmt::format("{} = {}\n", setting.name, to_text(setting.get()));
  }
  return text;
}

std::string Settings::to_json() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Setting& setting : settings_) json[setting.section][setting.name] = to_json_value(setting.get());
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void Settings::parse_json(std::string_view text, const std::string& name) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  check(json.is_object(), "{}: settings are not a JSON object", name);
  for (const auto& [section, table] : json.items())
    for (const auto& [key, value] : table.items())
      set(fmt::format("{}.{}", section, key), json_value(value), name);
}

std::string peek_toml(std::string_view text, const std::string& name, std::string_view key) {
  const toml::table document = parsed_toml(text, name);
  return document.at_path(key).value_or(std::string());
}

bool has_toml_section(std::string_view text, const std::string& name, std::string_view section) {
  return parsed_toml(text, name)[section].is_table();
}

}  // namespace prism
