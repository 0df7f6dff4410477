#include "prism/text/examples.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "prism/text/documents.h"

namespace prism {
namespace {

using nlohmann::json;

/// Calls `use` with the JSON of every line; what it misses is told with the place.
void read_objects(const std::string& file, const std::function<void(const json&)>& use) {
  int64_t number = 0;
  read_documents(file, {.format = TextFormat::kLines}, [&](std::string_view line) {
    ++number;
    const json object = json::parse(line, nullptr, false);
    check(object.is_object(), "{} object {}: \"{}\" is no JSON object", file, number, shortened(line));
    try {
      use(object);
    } catch (const json::exception& error) {
      fail("{} object {}: {}", file, number, error.what());
    }
    return true;
  });
  check(number > 0, "{}: holds no example", file);
}

}  // namespace

std::vector<CompletionExample> read_completions(const std::string& file) {
  std::vector<CompletionExample> examples;
  read_objects(file, [&](const json& object) {
    examples.push_back(
        {object.at("context").get<std::string>(), object.at("continuation").get<std::string>()});
  });
  return examples;
}

std::vector<ChoiceExample> read_choices(const std::string& file) {
  std::vector<ChoiceExample> examples;
  read_objects(file, [&](const json& object) {
    ChoiceExample example{.query = object.at("query").get<std::string>(),
                          .choices = object.at("choices").get<std::vector<std::string>>(),
                          .gold = object.at("gold").get<int64_t>()};
    const auto count = static_cast<int64_t>(example.choices.size());
    check(example.gold >= 0 && example.gold < count, "{} object {}: gold is {}, there are {} choices", file,
          examples.size() + 1, example.gold, count);
    examples.push_back(std::move(example));
  });
  return examples;
}

}  // namespace prism
