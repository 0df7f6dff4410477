#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace prism {

/// The target and the negatives of each position.
struct Candidates {
  at::Tensor ids;         ///< int64 [N,1+n] on the targets' device: the target, then its negatives
  at::Tensor correction;  ///< [N,1+n] log-Q terms, fp32; undefined for uniform draws
};

/// Draws `negatives` items for each target, never the target itself, with replacement: uniformly, or in
/// proportion to `counts` [I] when defined. In the second case correction_j = log(n Q_j), Q_j = c_j / (C -
/// c_target), and 0 for the target, so that sum_j e^(s_j - correction_j) estimates the sum over all other
/// items without bias (as far as they were seen in training). Position i draws from its own stream
/// {{seed, "negatives", step}, "position", first_position + i}. Error when there is no item to draw.
Candidates draw_candidates(const at::Tensor& targets_N, int64_t items, int64_t negatives,
                           const at::Tensor& counts_I, uint64_t seed, int64_t step,
                           int64_t first_position = 0);

}  // namespace prism
