#include "prism/ops/softmax_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "prism/core/error.h"
#include "prism/kernels/item_loss.h"
#include "softmax_loss_cuda.h"
#include "wide.h"

namespace prism {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A loss and its gradients, made together; rows of h and items as seen.
using LossAndGradients = SoftmaxLossGradients;

/// Positions whose scores fit in a few MiB, the CPU's caches; a GPU wants few large launches: 256 MiB.
int64_t block_of(int64_t scores_a_position, const at::Tensor& like) {
  const int64_t scores = int64_t{1} << (like.is_cpu() ? 20 : 26);
  return std::max<int64_t>(scores / scores_a_position, 16);
}

bool has_kernels(const at::Tensor& h) { return h.is_cpu() && h.scalar_type() == at::kFloat; }

/// d[targets] += scale rows, in order.
void add_rows(at::Tensor& d_items, const at::Tensor& targets, const at::Tensor& rows, double scale) {
  if (!has_kernels(rows)) {
    d_items += at::embedding_dense_backward(rows * scale, targets, d_items.size(0), -1, false);
    return;
  }
  const at::Tensor factor = at::full({rows.size(0)}, scale, rows.options());
  kernels::add_item_gradients({.positions = rows.size(0), .candidates = 1, .width = rows.size(1)},
                              rows.const_data_ptr<float>(), targets.const_data_ptr<int64_t>(),
                              factor.const_data_ptr<float>(), d_items.mutable_data_ptr<float>());
}

/// Scores of a block become exp(score - max); returns 1 / their sums [n,1] and the sum of the losses, a
/// double.
std::pair<at::Tensor, at::Tensor> softmax_in_place(at::Tensor& scores, const at::Tensor& targets) {
  const int64_t rows = scores.size(0);
  if (!has_kernels(scores)) {
    const at::Tensor most = scores.amax(1, true), of_target = scores.gather(1, targets.unsqueeze(1));
    scores.sub_(most).exp_();
    const at::Tensor sums = scores.sum(1, true);
    return {sums.reciprocal(), (sums.log() + most - of_target).sum(at::kDouble)};
  }
  at::Tensor inverse_sums = at::empty({rows, 1}, scores.options());
  std::vector<double> losses(rows);
  kernels::softmax_rows(scores.mutable_data_ptr<float>(), rows, scores.size(1),
                        targets.const_data_ptr<int64_t>(), inverse_sums.mutable_data_ptr<float>(),
                        losses.data());
  return {inverse_sums, at::full({}, std::accumulate(losses.begin(), losses.end(), 0.0), at::kDouble)};
}

/// With e = exp(scores - max) and z = 1 / sum e:  d_h = (e V) z - V[targets],  d_V = e^T (z h) - h at the
/// targets, both over N; the scores themselves are never touched again after the exponential.
LossAndGradients full_softmax(const at::Tensor& h, const at::Tensor& items, const at::Tensor& targets) {
  const int64_t positions = h.size(0), block = std::min(positions, block_of(items.size(0), h));
  const double scale = 1.0 / static_cast<double>(positions);
  LossAndGradients out{{}, at::empty_like(h), at::zeros_like(items)};
  const at::Tensor items_t = items.t(), buffer = at::empty({block, items.size(0)}, h.options());
  at::Tensor loss = at::zeros({}, h.options().dtype(at::kDouble));
  for (int64_t first = 0; first < positions; first += block) {
    const int64_t count = std::min(block, positions - first);
    const at::Tensor h_block = h.narrow(0, first, count);
    at::Tensor scores = buffer.narrow(0, 0, count), d_h = out.d_h.narrow(0, first, count);
    at::mm_out(scores, h_block, items_t);
    auto [inverse_sums, block_loss] = softmax_in_place(scores, targets.narrow(0, first, count));
    loss += block_loss;
    inverse_sums.mul_(scale);
    at::mm_out(d_h, scores, items);
    d_h.mul_(inverse_sums);
    out.d_items.addmm_(scores.t(), h_block * inverse_sums);
  }
  out.d_h.sub_(items.index_select(0, targets), scale);
  add_rows(out.d_items, targets, h, -scale);
  out.loss = loss.mul_(scale).to(h.scalar_type());
  return out;
}

/// d loss / d scores, and the sum of losses, of a block of scores [n,1+m] that already hold the correction.
std::pair<at::Tensor, at::Tensor> score_gradients(SampledLoss kind, const at::Tensor& scores, double weight) {
  at::Tensor target = scores.narrow(1, 0, 1);
  if (kind == SampledLoss::kSoftmax) {
    const at::Tensor normaliser = at::logsumexp(scores, 1, true);
    at::Tensor d = (scores - normaliser).exp();
    d.narrow(1, 0, 1).sub_(1);
    return {d, (normaliser - target).sum()};
  }
  at::Tensor d = at::sigmoid(scores);
  d.narrow(1, 0, 1).sub_(1).mul_(weight);
  const at::Tensor negatives = scores.narrow(1, 1, scores.size(1) - 1);
  return {d, -weight * at::log_sigmoid(target).sum() - at::log_sigmoid(-negatives).sum()};
}

LossAndGradients sampled_composed(SampledLoss kind, const at::Tensor& h, const at::Tensor& items,
                                  const at::Tensor& candidates, const at::Tensor& correction, double weight) {
  const int64_t positions = h.size(0), width = h.size(1), each = candidates.size(1);
  const int64_t block = std::min(positions, block_of(each * width, h));
  const double scale = 1.0 / static_cast<double>(positions);
  LossAndGradients out{at::zeros({}, h.options()), at::empty_like(h), at::zeros_like(items)};
  for (int64_t first = 0; first < positions; first += block) {
    const int64_t count = std::min(block, positions - first);
    const at::Tensor ids = candidates.narrow(0, first, count).reshape({-1});
    const at::Tensor h_block = h.narrow(0, first, count);
    const at::Tensor rows = items.index_select(0, ids).view({count, each, width});
    at::Tensor scores = at::bmm(rows, h_block.unsqueeze(2)).squeeze(2);
    if (correction.defined()) scores = scores - correction.narrow(0, first, count);
    auto [d_scores, loss] = score_gradients(kind, scores, weight);
    out.loss += loss * scale;
    d_scores.mul_(scale);
    out.d_h.narrow(0, first, count).copy_(at::bmm(d_scores.unsqueeze(1), rows).squeeze(1));
    const at::Tensor d_rows = d_scores.unsqueeze(2) * h_block.unsqueeze(1);
    out.d_items += at::embedding_dense_backward(d_rows.view({-1, width}), ids, items.size(0), -1, false);
  }
  return out;
}

LossAndGradients sampled(SampledLoss kind, const at::Tensor& h, const at::Tensor& items,
                         const at::Tensor& candidates, const at::Tensor& correction, double weight) {
  if (!has_kernels(h)) return sampled_composed(kind, h, items, candidates, correction, weight);
  const at::Tensor ids = candidates.contiguous(),
                   minus = correction.defined() ? correction.contiguous() : correction;
  const kernels::SampledShape shape{
      .kind = kind == SampledLoss::kSoftmax ? kernels::SampledKind::kSoftmax : kernels::SampledKind::kBinary,
      .positions = h.size(0),
      .candidates = ids.size(1),
      .width = h.size(1),
      .positive_weight = weight,
      .scale = 1.0 / static_cast<double>(h.size(0))};
  LossAndGradients out{{}, at::empty_like(h), at::zeros_like(items)};
  at::Tensor d_scores = at::empty(ids.sizes(), h.options());
  std::vector<double> losses(shape.positions);
  kernels::sampled_scores(
      shape, h.const_data_ptr<float>(), items.const_data_ptr<float>(), ids.const_data_ptr<int64_t>(),
      minus.defined() ? minus.const_data_ptr<float>() : nullptr, d_scores.mutable_data_ptr<float>(),
      out.d_h.mutable_data_ptr<float>(), losses.data());
  kernels::add_item_gradients(shape, h.const_data_ptr<float>(), ids.const_data_ptr<int64_t>(),
                              d_scores.const_data_ptr<float>(), out.d_items.mutable_data_ptr<float>());
  out.loss = at::full({}, std::accumulate(losses.begin(), losses.end(), 0.0) * shape.scale, h.options());
  return out;
}

/// A loss that computed its gradients already; backward scales them.
struct PrecomputedGradients : torch::autograd::Function<PrecomputedGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& h, const at::Tensor& items,
                            const LossAndGradients& made) {
    context->saved_data["d_h"] = made.d_h.to(h.scalar_type());
    context->saved_data["d_items"] = made.d_items.to(items.scalar_type());
    return made.loss;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {context->saved_data["d_h"].toTensor() * grads[0],
            context->saved_data["d_items"].toTensor() * grads[0], at::Tensor()};
  }
};

void check_inputs(const at::Tensor& h, const at::Tensor& items, const at::Tensor& ids, const char* name) {
  check(h.dim() == 2 && items.dim() == 2 && h.size(1) == items.size(1),
        "{}: h and the items must be [N,D] and [I,D] of one width", name);
  check(h.size(0) > 0, "{}: no positions", name);
  check(ids.size(0) == h.size(0), "{}: {} positions but {} targets", name, h.size(0), ids.size(0));
}

}  // namespace

at::Tensor full_softmax_loss(const at::Tensor& h, const at::Tensor& items, const at::Tensor& targets) {
  check_inputs(h, items, targets, "full_softmax_loss");
  LossAndGradients made;
  {
    const at::NoGradGuard no_gradient;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    made = has_cuda_softmax_loss(h) ? softmax_loss_cuda(h.detach(), items.detach(), targets.contiguous())
                                    : full_softmax(wide(h.detach()).contiguous(),
                                                   wide(items.detach()).contiguous(), targets.contiguous());
  }
  return PrecomputedGradients::apply(h, items, made);
}

at::Tensor sampled_loss(SampledLoss kind, const at::Tensor& h, const at::Tensor& items,
                        const at::Tensor& candidates, const at::Tensor& correction, double positive_weight) {
  check_inputs(h, items, candidates, "sampled_loss");
  LossAndGradients made;
  {
    const at::NoGradGuard no_gradient;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    made = sampled(kind, wide(h.detach()).contiguous(), wide(items.detach()).contiguous(), candidates,
                   correction, positive_weight);
  }
  return PrecomputedGradients::apply(h, items, made);
}

}  // namespace prism
