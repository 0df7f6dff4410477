#include "fast_mixing.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace prism {
namespace {

using at::Tensor;

/// gates [...,C] -> [...,C,C], the product of the gates after s up to t for s <= t. By substitution, not by
/// ratios: gates may be 0.
Tensor products(const Tensor& gates) {
  const int64_t C = gates.size(-1);
  const Tensor identity = at::eye(C, gates.options());
  const Tensor steps = identity - at::diag_embed(gates.narrow(-1, 1, C - 1), -1);
  return at::linalg_solve_triangular(steps, identity.expand_as(steps), /*upper=*/false, /*left=*/true,
                                     /*unitriangular=*/true);
}

/// The product of the gates from the chunk's first token to t, [...,C,1].
Tensor products_from_start(const Tensor& products, const Tensor& gates) {
  return products.narrow(-1, 0, 1) * gates.narrow(-1, 0, 1).unsqueeze(-1);
}

/// [C,J]: the tokens j in the window of t.
Tensor window_band(int64_t C, int64_t window, const at::TensorOptions& options) {
  return at::ones({C, C + window - 1}, options).triu().tril(window - 1);
}

Tensor gathered(const std::optional<Tensor>& gate, const MiniBatches& batches) {
  if (!gate) return {};
  return batches.gather(gate->dim() == 3 ? gate->unsqueeze(-1) : *gate);
}

Mixing by_channel(const Tensor& step, const Tensor& retention) {
  const Tensor gates = retention.transpose(1, 2);  // [Z,V,C]
  const Tensor D = products(gates);
  const Tensor into = step.defined() ? D * step.transpose(1, 2).unsqueeze(2) : D;
  return {.keep = products_from_start(D, gates).squeeze(-1).transpose(1, 2),
          .carry = {},
          .decay = {},
          .into = into,
          .sum = {},
          .apply = {}};
}

/// TTT: every token's gradient counts fully in S, and A_t takes as much of S as its place in the mini-batch
/// says.
Mixing by_place(const Tensor& place_step, const MiniBatches& batches) {
  const int64_t C = batches.slots();
  const auto options = place_step.options();
  Tensor step = place_step.narrow(0, 0, C).view({1, C, 1});
  if (batches.any_open()) step = at::embedding(place_step.unsqueeze(1), batches.places());
  const Tensor past = at::ones({1, C, C}, options).tril();
  return {.keep = {},
          .carry = step,
          .decay = at::ones({1, C, 1}, options),
          .into = step * past,
          .sum = past,
          .apply = {}};
}

Mixing rows_of(Mixing mixing, int64_t rows) {
  for (Tensor* x : {&mixing.keep, &mixing.carry, &mixing.decay, &mixing.into, &mixing.sum, &mixing.apply})
    if (x->defined() && x->size(0) == 1) {
      std::vector<int64_t> sizes = x->sizes().vec();
      sizes[0] = rows;
      *x = x->expand(sizes);
    }
  return mixing;
}

}  // namespace

Mixing make_mixing(const FastRule& rule, const MiniBatches& batches) {
  const Tensor padding = batches.padding();
  const int64_t Z = padding.size(0), C = batches.slots();
  if (!rule.accumulate) return rows_of(by_place(rule.place_step->to(padding.scalar_type()), batches), Z);
  const Tensor step = gathered(rule.step, batches), momentum = gathered(rule.momentum, batches);
  Tensor retention = gathered(rule.retention, batches);
  if (retention.defined()) retention = retention + padding;  // weights stay what they are there
  if (retention.defined() && retention.size(2) > 1) return by_channel(step, retention);

  Mixing mixing;
  mixing.sum = at::eye(C, padding.options()).unsqueeze(0);
  if (momentum.defined()) {
    mixing.sum = products(momentum.squeeze(2));
    mixing.decay = products_from_start(mixing.sum, momentum.squeeze(2));
  }
  if (rule.window > 1) mixing.sum = at::matmul(mixing.sum, window_band(C, rule.window, padding.options()));
  mixing.apply = at::ones({1, C, C}, padding.options()).tril();
  if (retention.defined()) {
    mixing.apply = products(retention.squeeze(2));
    mixing.keep = products_from_start(mixing.apply, retention.squeeze(2));
  }
  if (step.defined()) mixing.apply = mixing.apply * step.transpose(1, 2);
  const bool plain = !momentum.defined() && rule.window == 1;
  mixing.into = plain ? mixing.apply : at::matmul(mixing.apply, mixing.sum);
  if (momentum.defined()) mixing.carry = at::matmul(mixing.apply, mixing.decay);
  return rows_of(mixing, Z);
}

}  // namespace prism
