#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prism {

/// A text and how it goes on: the last word of LAMBADA.
struct CompletionExample {
  std::string context, continuation;
};
/// A question, its possible answers and the index of the right one: PIQA, ARC, HellaSwag.
struct ChoiceExample {
  std::string query;
  std::vector<std::string> choices;
  int64_t gold = 0;
};

/// Examples of a file of JSON objects, one a line, plain, gzip or zstd: {"context", "continuation"}, and
/// {"query", "choices", "gold"}. Error with file and line where a key is missing or of another kind, or gold
/// is no index of choices.
std::vector<CompletionExample> read_completions(const std::string& file);
std::vector<ChoiceExample> read_choices(const std::string& file);

}  // namespace prism
