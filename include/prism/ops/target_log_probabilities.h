#pragma once
#include <ATen/core/Tensor.h>

namespace prism {

/// log softmax over all items of h . v_i, at the target: h [N,D], items [I,D], targets int64 [N] in [0, I) ->
/// fp32 [N] (fp64 with fp64). Scores exist for a block of positions at a time. Not differentiable: training
/// has full_softmax_loss.
at::Tensor target_log_probabilities(const at::Tensor& h_ND, const at::Tensor& items_ID,
                                    const at::Tensor& targets_N);

/// Whether no other item has a higher score than the target: bool [N].
at::Tensor target_is_first(const at::Tensor& h_ND, const at::Tensor& items_ID, const at::Tensor& targets_N);

}  // namespace prism
