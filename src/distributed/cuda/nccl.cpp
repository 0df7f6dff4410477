// Part of libprism_cuda.so where nccl.h was found: loading it makes NCCL known to Ranks. The code itself is
// in libtorch_cuda.so, which is loaded before.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "distributed/backends.h"

namespace prism {
namespace {

Backend make_nccl(const BackendStore& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

[[maybe_unused]] const bool kRegistered = [] {
  set_nccl(make_nccl);
  return true;
}();

}  // namespace
}  // namespace prism
