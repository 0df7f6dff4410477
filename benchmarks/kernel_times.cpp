#include "kernel_times.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <set>

namespace prism {

std::vector<KernelTime> kernel_times(const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  const std::set<profiler::ActivityType> activities{profiler::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const auto result = profiler::disableProfiler();
  std::map<std::string, KernelTime> by_name;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    KernelTime& time = by_name[event.name()];
    time.milliseconds += static_cast<double>(event.durationNs()) * 1e-6;
    ++time.launches;
  }
  std::vector<KernelTime> times;
  times.reserve(by_name.size());
  for (auto& [name, time] : by_name) times.push_back({name, time.milliseconds, time.launches});
  std::sort(times.begin(), times.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.milliseconds > b.milliseconds; });
  return times;
}

std::string part_of_step(const std::string& kernel) {
  struct Part {
    const char *part, *fragment;
  };
  static constexpr Part kParts[] = {
      {"loss", "softmax_kernel"},
      {"recurrence and loop", "cuda::refine"},
      {"recurrence and loop", "solve_kernel"},
      {"recurrence and loop", "scan_kernel"},
      {"recurrence and loop", "state_gradients"},
      {"recurrence and loop", "chunk_gradients"},
      {"norms, convolutions, SwiGLU", "prism::kernels::cuda"},
      {"optimiser", "FusedAdam"},
      {"optimiser", "LpNorm"},
      {"optimiser", "lpnorm"},
      {"attention", "flash"},
      {"attention", "fmha"},
      {"attention", "attention"},
      {"matrix products", "nvjet"},
      {"matrix products", "gemm"},
      {"matrix products", "cutlass"},
      {"matrix products", "splitK"},
      {"matrix products", "gemv"},
  };
  for (const Part& p : kParts)
    if (kernel.find(p.fragment) != std::string::npos) return p.part;
  return "elementwise and copies";
}

}  // namespace prism
