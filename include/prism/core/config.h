#pragma once
// One mechanism for every setting. A component has a Config struct with a constexpr tuple `fields`; that
// table alone gives command-line flags, TOML keys, --help, the docs page, checkpoint JSON and range errors.
//
//   enum class Decay { kMamba, kSigmoid };
//   template <> struct prism::EnumNames<Decay> { static constexpr std::array names{"mamba", "sigmoid"}; };
//
//   struct PrismConfig {
//     int64_t heads = 2;
//     Decay decay = Decay::kMamba;
//     static constexpr auto fields = std::tuple{
//         Field{"heads", &PrismConfig::heads, Range{1, 1024}, "", "number of heads; divides the model
//         width"}, Field{"decay", &PrismConfig::decay, Any{}, "", "parameterisation of the forget gate"}};
//   };
//
//   Settings settings;
//   settings.bind("mixer", config);          // `config` must outlive `settings`
//   settings.read_toml("recipe.toml");       // unknown keys are errors that name the nearest known one
//   settings.set_text("heads", "4", "--heads");

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace prism {

/// Inclusive bounds of a number.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};
/// A value without bounds.
struct Any {};

/// Specialise with `static constexpr std::array names{...}`, one name an enumerator, in order from 0.
template <class E>
struct EnumNames;

/// The name of an enumerator.
template <class E>
std::string_view enum_name(E value) {
  return EnumNames<E>::names[static_cast<size_t>(value)];
}

/// One line of a Config's table. `unit` may be "" and appears in --help.
template <class Config, class T, class Bounds>
struct Field {
  std::string_view name;
  T Config::*member;
  Bounds bounds;
  std::string_view unit;
  std::string_view help;
};
// Clang 14 does not deduce the arguments of an aggregate by itself.
template <class Config, class T, class Bounds>
Field(const char*, T Config::*, Bounds, const char*, const char*) -> Field<Config, T, Bounds>;

using Value =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>>;

/// `value` as TOML would write it.
std::string to_text(const Value& value);

/// A field bound to one object.
struct Setting {
  std::string section, name, type, unit, help;
  Range range;                       ///< numbers only
  std::vector<std::string> choices;  ///< enumerations only
  Value default_value;               ///< the value when it was bound
  bool assigned = false;             ///< whether set() was called: a recipe or a flag chose the value
  std::function<Value()> get;
  std::function<void(const Value&)> assign;  ///< takes a value of the right alternative, already checked

  /// "1..1024", "mamba | sigmoid" or "".
  std::string range_text() const;
};

/// The settings of a program: sections of bound fields, in the order of binding.
class Settings {
 public:
  template <class Config>
  void bind(const std::string& section, Config& config);

  const std::vector<Setting>& all() const { return settings_; }
  /// The setting called `name` ("heads", or "mixer.heads"); nullptr when unknown.
  const Setting* find(std::string_view name) const;
  /// Whether a recipe or a flag chose the value of `name`, which must be known.
  bool is_assigned(std::string_view name) const { return find(name)->assigned; }

  /// Checks type and range, converts (int to double, name to enumerator) and assigns. `where` opens error
  /// messages: `recipe.toml line 3`, `--heads`. Throws usage errors.
  void set(std::string_view name, const Value& value, std::string_view where);
  /// The same from text, as on the command line. Lists are separated by commas.
  void set_text(std::string_view name, const std::string& text, std::string_view where);

  /// Assigns every key of a TOML document. Sections are tables; `name` opens error messages.
  void parse_toml(std::string_view text, const std::string& name);
  void read_toml(const std::filesystem::path& path);
  /// All settings as TOML that parse_toml reads back to the same values.
  std::string to_toml() const;
  /// The same as a JSON object {section: {name: value}}.
  std::string to_json() const;
  void parse_json(std::string_view text, const std::string& name);

 private:
  Setting& require(std::string_view name, std::string_view where);
  std::vector<Setting> settings_;
};

/// One key of a TOML document without binding anything, e.g. to learn which mixer's table applies.
/// "" when the key is absent. `key` is dotted: "model.mixer".
std::string peek_toml(std::string_view text, const std::string& name, std::string_view key);

namespace detail {

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};

template <class T>
Value to_value(const T& member) {
  if constexpr (std::is_enum_v<T>)
    return std::string(enum_name(member));
  else
    return member;
}

template <class T>
T from_value(const Value& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& name = std::get<std::string>(value);
    size_t index = 0;
    while (EnumNames<T>::names[index] != name) ++index;  // Settings has checked the name
    return static_cast<T>(index);
  } else {
    return std::get<T>(value);
  }
}

template <class T>
std::string type_name() {
  if constexpr (std::is_enum_v<T>)
    return "name";
  else if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, int64_t>)
    return "integer";
  else if constexpr (std::is_same_v<T, double>)
    return "number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
    return "integers";
  else
    return "list of text";
}

template <class Config, class T, class Bounds>
Setting make_setting(const std::string& section, const Field<Config, T, Bounds>& field, Config& config) {
  Setting setting{.section = section,
                  .name = std::string(field.name),
                  .type = type_name<T>(),
                  .unit = std::string(field.unit),
                  .help = std::string(field.help),
                  .range = {},
                  .choices = {},
                  .default_value = to_value(config.*field.member),
                  .assigned = false,
                  .get = {},
                  .assign = {}};
  if constexpr (std::is_same_v<Bounds, Range>) setting.range = field.bounds;
  if constexpr (std::is_enum_v<T>)
    setting.choices.assign(EnumNames<T>::names.begin(), EnumNames<T>::names.end());
  auto member = field.member;
  setting.get = [&config, member] { return to_value(config.*member); };
  setting.assign = [&config, member](const Value& value) { config.*member = from_value<T>(value); };
  return setting;
}

}  // namespace detail

template <class Config>
void Settings::bind(const std::string& section, Config& config) {
  std::apply(
      [&](const auto&... field) { (settings_.push_back(detail::make_setting(section, field, config)), ...); },
      Config::fields);
}

}  // namespace prism
