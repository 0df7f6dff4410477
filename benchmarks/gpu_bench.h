#pragma once
// The sections of the GPU benchmark. Each prints a Markdown table and adds its figures to `json`.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu_shapes.h"
#include "gpu_stopwatch.h"

namespace prism::gpu {

struct Bench {
  Stopwatch watch;
  std::string only;  ///< shapes whose name contains this text
  double copy = 0;   ///< TB/s of a device-to-device copy, read and write counted
  int wrong = 0;     ///< results that were off; they are named in the table and not timed
  nlohmann::json json = {};

  bool wanted(const std::string& name) const { return name.find(only) != std::string::npos; }
  double share_of_copy(double bytes, double milliseconds) const { return 1e-9 * bytes / milliseconds / copy; }
};

void bench_machine(Bench& bench);
void bench_chunk(Bench& bench);
void bench_attention(Bench& bench);
void bench_step(Bench& bench);
void bench_refine(Bench& bench);

/// Relative L2 distance.
inline double relative_error(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor wide = y.to(at::kDouble);
  return ((x.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

/// Prints a line of a table at once: a run that is cut short keeps it.
template <class... Args>
void print_row(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(text, std::forward<Args>(args)...);
  std::fflush(stdout);
}

}  // namespace prism::gpu
