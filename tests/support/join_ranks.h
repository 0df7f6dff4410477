#pragma once
#include <memory>

#include "prism/distributed/ranks.h"

namespace prism {

/// This process as the rank that its environment names, on the CPU.
inline std::shared_ptr<Ranks> join_ranks() {
  return Ranks::join(read_rank_environment(), c10::Device(c10::kCPU));
}

}  // namespace prism
