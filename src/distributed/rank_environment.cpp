#include "prism/distributed/rank_environment.h"

#include <charconv>
#include <cstdlib>

#include "prism/core/error.h"

namespace prism {
namespace {

using Lookup = std::function<const char*(const char*)>;

constexpr int64_t kMostRanks = 1 << 20, kMostPort = 65535, kDefaultPort = 29500;  // torchrun's default

std::optional<int64_t> number(const Lookup& variable, const std::string& name, int64_t low, int64_t high) {
  const char* text = variable(name.c_str());
  if (!text) return std::nullopt;
  const std::string_view view = text;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < low || value > high)
    usage_error("environment: {} is \"{}\", expected {} to {}", name, view, low, high);
  return value;
}

/// Names of the variables that one launcher sets.
struct Launcher {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Launcher kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kMpirun{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE"};

void read_meeting_point(const Lookup& variable, bool one_machine, RankEnvironment& place) {
  const char* address = variable("MASTER_ADDR");
  if (!address && !one_machine)
    usage_error("environment: {} processes but no MASTER_ADDR, the host of rank 0", place.size);
  place.address = address ? address : "127.0.0.1";
  const auto port = number(variable, "MASTER_PORT", 1, kMostPort);
  if (!port && !one_machine)
    usage_error("environment: {} processes but no MASTER_PORT, a free port of {}", place.size, place.address);
  place.port = port.value_or(kDefaultPort);
}

}  // namespace

RankEnvironment read_rank_environment(const Lookup& variable) {
  const bool mpi = !variable(kTorchrun.size) && variable(kMpirun.size);
  const Launcher& names = mpi ? kMpirun : kTorchrun;
  RankEnvironment place{.size = number(variable, names.size, 1, kMostRanks).value_or(1)};
  if (place.size == 1) return place;
  const auto rank = number(variable, names.rank, 0, place.size - 1);
  if (!rank) usage_error("environment: {} is {} but {} is not set", names.size, place.size, names.rank);
  place.rank = *rank;
  place.local_rank = number(variable, names.local_rank, 0, place.size - 1);
  place.local_size = number(variable, names.local_size, 1, place.size);
  read_meeting_point(variable, mpi && place.local_size == place.size, place);
  const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  place.store_is_there = agent && std::string_view(agent) == "True";
  place.attempt = number(variable, "TORCHELASTIC_RESTART_COUNT", 0, kMostRanks).value_or(0);
  return place;
}

RankEnvironment read_rank_environment() {
  return read_rank_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace prism
