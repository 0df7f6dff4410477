#include "help_formatter.h"

#include <algorithm>

namespace prism::cli {
namespace {

constexpr size_t kWidth = 110;

/// `text` in lines of at most `width`, all but the first after `indent` blanks.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string out;
  size_t used = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const size_t length = end - start;
    if (used > 0 && used + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      used = 0;
    } else if (used > 0) {
      out += " ";
      ++used;
    }
    out += text.substr(start, length);
    used += length;
    start = end + 1;
  }
  return out;
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool positional) const {
  const size_t column = get_column_width();
  std::string left = "  " + make_option_name(option, positional) + make_option_opts(option);
  const std::string right = wrapped(make_option_desc(option), kWidth - column, column);
  if (right.empty()) return left + "\n";
  left += left.size() + 2 > column ? "\n" + std::string(column, ' ') : std::string(column - left.size(), ' ');
  return left + right + "\n";
}

/// "--header, --no-header" where CLI11 writes --header,--no-header{false}.
std::string HelpFormatter::make_option_name(const CLI::Option* option, bool positional) const {
  std::string name = CLI::Formatter::make_option_name(option, positional);
  for (size_t at; (at = name.find("{false}")) != name.npos;) name.erase(at, 7);
  for (size_t at = 0; (at = name.find(',', at)) != name.npos; at += 2) name.replace(at, 1, ", ");
  return name;
}

/// The type and the default; ranges are in the explanation.
std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string out;
  if (option->get_type_size() != 0) {
    const std::string type = option->get_type_name();
    out = " " + type.substr(0, type.find(':'));
    if (option->get_default_str().size() > 0) out += "=" + option->get_default_str();
  }
  return out + (option->get_required() ? " (required)" : "");
}

}  // namespace prism::cli
