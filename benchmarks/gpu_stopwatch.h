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

  /// Milliseconds between events around the call, which comes while the card flushes: what of the host's part
  /// takes longer than that (60 us) counts, as in a training that keeps the card busy.
  double call(const Action& action) { return median(action, false); }
  /// The same on a card that has nothing to do: everything that the host does before the first kernel counts.
  double from_idle(const Action& action) { return median(action, true); }
  /// Milliseconds of a replayed graph of the call: its kernels, without the host.
  double kernels(const Action& action);

 private:
  double median(const Action& action, bool idle);

  double seconds_;
  CUevent_st *start_ = nullptr, *stop_ = nullptr;
  at::Tensor flush_;
};

}  // namespace prism::gpu
