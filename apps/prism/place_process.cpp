#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "command.h"
#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/ops/device.h"

namespace prism::cli {
namespace {

/// cuda is the GPU of the local rank.
std::string own_device(const std::string& name, const RankEnvironment& place) {
  if (!name.starts_with("cuda")) return name;
  if (name != "cuda")
    usage_error("--device {}: {} processes cannot share a GPU; --device cuda gives each its own", name,
                place.size);
  if (!place.local_rank)
    usage_error("--device cuda: LOCAL_RANK is not set, so this process does not know its GPU");
  return "cuda:" + std::to_string(*place.local_rank);
}

}  // namespace

Placement place_process(const Globals& globals) {
  const RankEnvironment place = read_rank_environment();
  if (place.size == 1) return {require_device(globals.device), nullptr};
  if (place.rank != 0) set_log_level(LogLevel::kSilent);
  const c10::Device device = require_device(own_device(globals.device, place));
  if (globals.threads == 0 && !std::getenv("OMP_NUM_THREADS"))
    at::set_num_threads(
        std::max<int>(at::get_num_threads() / static_cast<int>(place.local_size.value_or(1)), 1));
  Placement joined{device, Ranks::join(place, device)};
  info("{} processes share every step; gradients travel by {}{}", place.size, joined.ranks->transport(),
       device.is_cuda() && joined.ranks->transport() == "gloo"
           ? ": libprism_cuda.so was built without NCCL, or is not there"
           : "");
  return joined;
}

}  // namespace prism::cli
