#include "prism/core/version.h"

#include <fmt/format.h>

#include <thread>

#include "build_info.h"

namespace prism {

std::string version() { return PRISM_VERSION; }

std::string build_facts() {
  return fmt::format(
      "prism {}\ncommit    {}\nbuild     {}, {}\nLibTorch  {} ({})\nthreads   {} on this machine\n",
      PRISM_VERSION, PRISM_COMMIT, PRISM_BUILD_TYPE, PRISM_COMPILER, PRISM_TORCH_VERSION, PRISM_TORCH_LIB,
      std::thread::hardware_concurrency());
}

}  // namespace prism
