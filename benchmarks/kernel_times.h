#pragma once
#include <functional>
#include <string>
#include <vector>

namespace prism {

struct KernelTime {
  std::string name;
  double milliseconds = 0;  ///< of all its launches
  int64_t launches = 0;
};

/// Runs `work`, which must end with the device idle, under Kineto's tracer: the time of every kernel, copy
/// and fill on the GPU, longest first.
std::vector<KernelTime> kernel_times(const std::function<void()>& work);

/// What part of a training step a kernel belongs to: "matrix products", "recurrence and loop" (prism_chunk,
/// prism_step, prism_refine), "attention", "norms, convolutions, SwiGLU", "loss", "optimiser", "elementwise
/// and copies".
std::string part_of_step(const std::string& kernel);

}  // namespace prism
