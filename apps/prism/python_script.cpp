#include "python_script.h"

#include <cstdlib>
#include <filesystem>

#include "prism/core/error.h"

namespace prism::cli {

namespace fs = std::filesystem;

std::string program_path() { return fs::read_symlink("/proc/self/exe").string(); }

std::string python_program(const std::string& wanted) {
  const char* variable = std::getenv("PRISM_PYTHON");
  return !wanted.empty() ? wanted : variable ? variable : "python3";
}

std::string python_script(const std::string& name) {
  const fs::path folder = fs::path(program_path()).parent_path();
  for (const char* relative : {"../share/prism/python/prism/", "../../../python/prism/"})
    if (fs::exists(folder / relative / name)) return fs::canonical(folder / relative / name).string();
  fail("{} is neither in ../share/prism/python/prism nor in the source tree of {}", name, folder.string());
}

}  // namespace prism::cli
