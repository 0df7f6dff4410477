// The only file that sees ProcessGroupGloo.hpp: compiled with src/distributed/gloo_names and USE_C10D_GLOO.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "distributed/backends.h"

namespace prism {

Backend make_gloo(const BackendStore& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create_default(timeout);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace prism
