#include "prism/core/version.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "build_info.h"

namespace prism {

std::string version() { return PRISM_VERSION; }

std::string build_facts() {
  return fmt::format(
      "prism {}\ncommit    {}\nbuild     {}, {}\nLibTorch  {} ({})\nthreads   {} on this machine",
      PRISM_VERSION, PRISM_COMMIT, PRISM_BUILD_TYPE, PRISM_COMPILER, PRISM_TORCH_VERSION, PRISM_TORCH_LIB,
      std::thread::hardware_concurrency());
}

std::string build_facts_json() {
  return nlohmann::ordered_json{{"version", PRISM_VERSION},
                                {"commit", PRISM_COMMIT},
                                {"build", PRISM_BUILD_TYPE},
                                {"compiler", PRISM_COMPILER},
                                {"torch", PRISM_TORCH_VERSION},
                                {"torch_folder", PRISM_TORCH_LIB},
                                {"threads", std::thread::hardware_concurrency()}}
      .dump(2);
}

}  // namespace prism
