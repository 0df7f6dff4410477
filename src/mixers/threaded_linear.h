#pragma once
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mv.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace prism {

/// x W^T, as at::linear, which multiplies a single row of fp32, all that decoding one text does, on one
/// thread of the CPU: here blocks of W's rows go to all threads. The blocks are the same for any number of
/// threads, so that bits are.
inline at::Tensor threaded_linear(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kBlocks = 8;
  const bool one_row = x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
                       x.numel() == x.size(-1) && !at::GradMode::is_enabled() &&
                       !at::autocast::is_autocast_enabled(at::kCPU);
  if (!one_row) return at::linear(x, weight);
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t rows = shape.back() = weight.size(0), block = (rows + kBlocks - 1) / kBlocks;
  at::Tensor y = at::empty(shape, x.options());
  const at::Tensor from = x.detach().reshape(-1), to = y.view(-1),
                   W = weight.detach();  // the threads have modes of their own: gradients would be recorded
  at::parallel_for(0, kBlocks, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = std::min(rows, i * block), count = std::min(rows, first + block) - first;
      at::Tensor part = to.narrow(0, first, count);
      if (count > 0) at::mv_out(part, W.narrow(0, first, count), from);
    }
  });
  return y;
}

}  // namespace prism
