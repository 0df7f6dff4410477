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

ChoiceExample choice_example(ChoiceForm form, const std::string& query,
                             const std::vector<std::string>& choices, int64_t gold) {
  const std::string context = query.substr(0, query.find_last_not_of(" \t\n\r") + 1) +
                              (form == ChoiceForm::kAnswers ? "\nAnswer:" : "");
  ChoiceExample example{.options = {}, .gold = gold};
  for (const std::string& choice : choices) example.options.push_back({context, choice});
  return example;
}

std::vector<ChoiceExample> read_choices(const std::string& file, ChoiceForm form) {
  std::vector<ChoiceExample> examples;
  read_objects(file, [&](const json& object) {
    const auto texts = [&](const char* key) { return object.at(key).get<std::vector<std::string>>(); };
    const auto gold = object.at("gold").get<int64_t>();
    ChoiceExample example{.options = {}, .gold = gold};
    if (form == ChoiceForm::kSchemas) {
      for (const std::string& context : texts("context_options"))
        example.options.push_back({context, object.at("continuation").get<std::string>()});
    } else {
      example = choice_example(form, object.at("query").get<std::string>(), texts("choices"), gold);
    }
    const auto count = static_cast<int64_t>(example.options.size());
    check(gold >= 0 && gold < count, "{} object {}: gold is {}, there are {} choices", file,
          examples.size() + 1, gold, count);
    examples.push_back(std::move(example));
  });
  return examples;
}

}  // namespace prism
