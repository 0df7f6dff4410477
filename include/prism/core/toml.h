#pragma once
#include <string>
#include <string_view>

namespace prism {

/// Whether a TOML document has the table [section]; `name` opens the error about one that is none.
bool has_toml_section(std::string_view text, const std::string& name, std::string_view section);

}  // namespace prism
