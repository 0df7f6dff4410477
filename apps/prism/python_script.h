#pragma once
#include <string>
#include <vector>

namespace prism::cli {

/// The program itself.
std::string program_path();

/// Python with matplotlib: `wanted`, else $PRISM_PYTHON, else python3.
std::string python_program(const std::string& wanted);

/// A script of python/prism: of an installation (share/prism beside bin) or of a source tree
/// (build/<preset>/bin/prism). Error where it is in neither.
std::string python_script(const std::string& name);

}  // namespace prism::cli
