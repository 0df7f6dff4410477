#pragma once
// The models of the language model benchmarks by their names on the command line.
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

namespace prism {

/// A row of the table: a mixer, and for PRISM its L.
struct ModelRow {
  std::string label, mixer;
  std::optional<int64_t> steps = {};
};

/// "prism:2" is PRISM with L = 2.
inline ModelRow parse_model(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return {text, text};
  return {fmt::format("{} L = {}", text.substr(0, colon), text.substr(colon + 1)), text.substr(0, colon),
          std::stoll(text.substr(colon + 1))};
}

}  // namespace prism
