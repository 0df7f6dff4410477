#pragma once
#include <ATen/core/Tensor.h>

namespace prism {

/// Mean over positions of logsumexp_i(h . v_i) - h . v_target, over all items; h [N,D], items [I,D], targets
/// int64 [N] in [0, I). Scores exist only for a block of positions at a time: the forward pass computes both
/// gradients while it has them, backward scales these. Returns a scalar in fp32 (fp64 with fp64).
/// Differentiable once in h and items. Deterministic. On a GPU with libprism_cuda.so the matrix products take
/// h's dtype; scores, sums and the items' gradient are fp32 all the same, and nothing waits for the device.
at::Tensor full_softmax_loss(const at::Tensor& h_ND, const at::Tensor& items_ID, const at::Tensor& targets_N);

/// How scores of a target and its negatives become a loss.
enum class SampledLoss {
  kSoftmax,  ///< -log( e^s+ / (e^s+ + sum_j e^(s_j - c_j)) ),  c_j: `correction`
  kBinary,   ///< -( weight log sigmoid(s+) + sum_j log(1 - sigmoid(s_j)) )
};

/// Mean over positions of the loss between each target and its own negatives. candidates int64 [N,1+n]: the
/// target, then n negatives; correction [N,1+n] is subtracted from the scores (undefined: zeros).
/// positive_weight multiplies the target's term of kBinary. Differentiable once in h and items; both
/// gradients are made in the forward pass, in blocks of positions. Deterministic.
at::Tensor sampled_loss(SampledLoss kind, const at::Tensor& h_ND, const at::Tensor& items_ID,
                        const at::Tensor& candidates, const at::Tensor& correction,
                        double positive_weight = 1);

}  // namespace prism
