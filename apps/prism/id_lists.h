#pragma once
#include <string>
#include <vector>

namespace prism::cli {

/// Ids of one line of a file of histories: between tabs, or without tabs between blanks. A CR at the end is
/// dropped.
std::vector<std::string> split_history(std::string line);

/// Ids of a flag: `a,b,c`, or `@FILE` with one id a line. Empty ones are dropped.
std::vector<std::string> split_ids(const std::string& text);

}  // namespace prism::cli
