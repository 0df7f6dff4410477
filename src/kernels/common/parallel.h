#pragma once
#include <omp.h>

#include <cstdint>
#include <exception>

namespace prism::kernels {

/// Calls f(i) for i in [0, count), on OpenMP's threads when `work` (in fused multiply-adds or so) repays
/// waking them. Each i runs on one thread; an exception of f is rethrown here.
template <class F>
void parallel_for(int64_t count, double work, F f) {
  constexpr double kWorthThreads = 5e4;
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1) if (count > 1 && work > kWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    try {
      f(i);
    } catch (...) {
#pragma omp critical(prism_parallel_for)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Calls f(begin, end) for the blocks of `length` that cover [0, count).
template <class F>
void parallel_blocks(int64_t count, int64_t length, double work, F f) {
  parallel_for((count + length - 1) / length, work,
               [&](int64_t i) { f(i * length, i * length + length < count ? i * length + length : count); });
}

}  // namespace prism::kernels
