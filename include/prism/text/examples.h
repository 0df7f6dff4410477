#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prism {

/// A text and how it goes on: the last word of LAMBADA.
struct CompletionExample {
  std::string context, continuation;
};
/// Texts of which one is right: its index is `gold`. Each option is asked for after its own context.
struct ChoiceExample {
  struct Option {
    std::string context, text;
  };
  std::vector<Option> options;
  int64_t gold = 0;
};

/// How a file's records become options, as in lm-evaluation-harness; all but kSchemas are {"query",
/// "choices", "gold"}.
enum class ChoiceForm {
  kAnswers,  ///< query, line break, "Answer:", choice: PIQA, ARC
  kEndings,  ///< query, choice: HellaSwag, OpenBookQA
  kSchemas   ///< {"context_options", "continuation", "gold"}; each context, continuation: WinoGrande
};

/// The options of a query (without white space at its end); kAnswers or kEndings.
ChoiceExample choice_example(ChoiceForm form, const std::string& query,
                             const std::vector<std::string>& choices, int64_t gold);

/// Examples of a file of JSON objects, one a line, plain, gzip or zstd: {"context", "continuation"}, and
/// those of `form`. Error with file and line where a key is missing or of another kind, or gold is no index
/// of the options.
std::vector<CompletionExample> read_completions(const std::string& file);
std::vector<ChoiceExample> read_choices(const std::string& file, ChoiceForm form);

}  // namespace prism
