#include "prism/models/losses.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "models/negatives.h"
#include "prism/core/error.h"
#include "prism/ops/softmax_loss.h"

namespace prism {
namespace {

/// beta of gBCE (Petrov and Macdonald 2023): alpha (t (1 - 1/alpha) + 1/alpha) with alpha = n / (I - 1).
double gbce_weight(const LossConfig& config, int64_t items) {
  const double alpha = static_cast<double>(config.negatives) / static_cast<double>(items - 1);
  return alpha * (config.gbce_t * (1 - 1 / alpha) + 1 / alpha);
}

}  // namespace

at::Tensor next_item_loss(const LossConfig& config, const at::Tensor& h_ND, const at::Tensor& item_vectors_ID,
                          const at::Tensor& targets_N, const at::Tensor& item_counts_I, uint64_t seed,
                          int64_t step, int64_t first_position) {
  const bool softmax = config.loss == Loss::kFullSoftmax || config.loss == Loss::kSampledSoftmax;
  const at::Tensor& items = item_vectors_ID;
  at::Tensor h = h_ND;
  if (softmax && config.temperature != 1) h = h / config.temperature;
  if (config.loss == Loss::kFullSoftmax) return full_softmax_loss(h, items, targets_N);

  const int64_t count = config.loss == Loss::kBce ? 1 : config.negatives;
  const bool by_popularity = config.loss == Loss::kSampledSoftmax && config.log_q;
  const Candidates drawn =
      draw_candidates(targets_N, items.size(0), count, by_popularity ? item_counts_I : at::Tensor(), seed,
                      step, first_position);
  switch (config.loss) {
    case Loss::kSampledSoftmax:
      return sampled_loss(SampledLoss::kSoftmax, h, items, drawn.ids, drawn.correction);
    case Loss::kBce:
      return sampled_loss(SampledLoss::kBinary, h, items, drawn.ids, {});
    default:
      return sampled_loss(SampledLoss::kBinary, h, items, drawn.ids, {}, gbce_weight(config, items.size(0))) /
             static_cast<double>(1 + count);
  }
}

}  // namespace prism
