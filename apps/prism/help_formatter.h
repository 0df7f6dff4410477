#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace prism::cli {

/// CLI11's help, a screen wide: flags in one column, wrapped explanations in another.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option(const CLI::Option* option, bool positional) const override;
  std::string make_option_name(const CLI::Option* option, bool positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace prism::cli
