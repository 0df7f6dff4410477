#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace prism {

/// The place of this process among those of one training, as torchrun and mpirun tell it.
struct RankEnvironment {
  int64_t rank = 0, size = 1;
  std::optional<int64_t> local_rank = {}, local_size = {};  ///< among the processes of this machine
  std::string address = {};                                 ///< where all meet: host and port
  int64_t port = 0;
  bool store_is_there = false;  ///< torchrun serves the meeting point itself
  int64_t attempt = 0;          ///< how often torchrun has started the processes anew
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, or where those are absent OMPI_COMM_WORLD_RANK,
/// _SIZE, _LOCAL_RANK, _LOCAL_SIZE; MASTER_ADDR and MASTER_PORT (mpirun on one machine: 127.0.0.1 and 29500
/// where they are absent). Without a size it is one process. Usage errors name the variable. `variable` is
/// getenv, or a test's.
RankEnvironment read_rank_environment(const std::function<const char*(const char*)>& variable);
RankEnvironment read_rank_environment();

}  // namespace prism
