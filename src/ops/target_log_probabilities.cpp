#include "prism/ops/target_log_probabilities.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "prism/core/error.h"
#include "wide.h"

namespace prism {
namespace {

/// Scores of a block: some MiB for the CPU's caches, 256 MiB for few large launches of a GPU.
int64_t rows_of_block(const at::Tensor& h, int64_t items) {
  return std::max<int64_t>((int64_t{1} << (h.is_cpu() ? 20 : 26)) / items, 1);
}

using FromScores = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& targets)>;

at::Tensor by_blocks(const char* name, const at::Tensor& h, const at::Tensor& items,
                     const at::Tensor& targets, const FromScores& make) {
  const at::NoGradGuard no_gradient;
  check(h.dim() == 2 && items.dim() == 2 && h.size(1) == items.size(1),
        "{}: h and the items must be [N,D] and [I,D] of one width", name);
  check(h.size(0) == targets.size(0) && h.size(0) > 0, "{}: {} positions, {} targets", name, h.size(0),
        targets.size(0));
  const at::Tensor table = wide(items).t();
  const int64_t rows = rows_of_block(h, items.size(0));
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < h.size(0); first += rows) {
    const int64_t count = std::min(rows, h.size(0) - first);
    parts.push_back(make(at::mm(wide(h.narrow(0, first, count)), table), targets.narrow(0, first, count)));
  }
  return at::cat(parts);
}

}  // namespace

at::Tensor target_log_probabilities(const at::Tensor& h_ND, const at::Tensor& items_ID,
                                    const at::Tensor& targets_N) {
  return by_blocks("target_log_probabilities", h_ND, items_ID, targets_N,
                   [](const at::Tensor& scores, const at::Tensor& targets) {
                     return scores.gather(1, targets.unsqueeze(1)).squeeze(1) - at::logsumexp(scores, 1);
                   });
}

at::Tensor target_is_first(const at::Tensor& h_ND, const at::Tensor& items_ID, const at::Tensor& targets_N) {
  return by_blocks("target_is_first", h_ND, items_ID, targets_N,
                   [](const at::Tensor& scores, const at::Tensor& targets) {
                     return scores.gather(1, targets.unsqueeze(1)).squeeze(1).ge(scores.amax(1));
                   });
}

}  // namespace prism
