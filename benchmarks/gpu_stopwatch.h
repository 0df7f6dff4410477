#pragma once
// Times of work on the GPU, for the benchmarks.
#include <ATen/core/Tensor.h>

#include <functional>

struct CUevent_st;

namespace prism::gpu {

using Action = std::function<void()>;

/// Medians of an action's time on the current stream, the L2 cache flushed before each.
class Stopwatch {
 public:
  /// `seconds`: measured time a figure, after 7 repeats at least and 60 at most.
  explicit Stopwatch(double seconds);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds between events around the call.
  double call(const Action& action);
  /// Milliseconds of a replayed graph of the call: its kernels, without the host.
  double kernels(const Action& action);

 private:
  double seconds_;
  CUevent_st *start_ = nullptr, *stop_ = nullptr;
  at::Tensor flush_;
};

}  // namespace prism::gpu
