#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace prism {

struct Outcome {
  int status = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// Runs the built program with the shell words `arguments`.
inline Outcome run_prism(const std::string& arguments) {
  const std::string errors = ::testing::TempDir() + "prism-stderr-" + std::to_string(::getpid());
  const std::string command = std::string(PRISM_BINARY_DIR) + "/bin/prism " + arguments + " 2>" + errors;
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return outcome;
  char buffer[4096];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    outcome.out.append(buffer, count);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::stringstream text;
  text << std::ifstream(errors).rdbuf();
  outcome.err = text.str();
  std::filesystem::remove(errors);
  return outcome;
}

inline std::string shared_file(const std::string& name) {
  return (std::filesystem::path(PRISM_SHARED_DIR) / "data/rec" / name).string();
}

}  // namespace prism
