#include "prism/ops/step_size.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "prism/core/error.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Below it, series: they are exact to rounding there, and the closed forms divide by x.
constexpr double kSmall = 1e-3;

/// f(x) = (1 - e^-x) / x.
Tensor mean_decay(const Tensor& x) {
  const Tensor series = 1 - x * (1.0 / 2 - x * (1.0 / 6 - x / 24));
  return at::where(x < kSmall, series, -at::expm1(-x) / x);
}

/// f'(x) = (e^-x - f(x)) / x.
Tensor mean_decay_slope(const Tensor& x) {
  const Tensor series = -1.0 / 2 + x * (1.0 / 3 - x * (1.0 / 8 - x / 30));
  return at::where(x < kSmall, series, (at::exp(-x) + at::expm1(-x) / x) / x);
}

/// The norms of k's heads, one for each of `heads` heads of b: [.., heads] of double.
Tensor squared_lengths(const Tensor& k, at::ScalarType type, int64_t heads) {
  const Tensor lengths = at::linalg_vector_norm(k, 2, -1, /*keepdim=*/false, type).to(at::kDouble).square();
  const int64_t repeats = heads / k.size(-2);
  return repeats > 1 ? lengths.repeat_interleave(repeats, -1) : lengths;
}

/// b' = b f(b s), s = |k|^2: db'/db = e^{-b s}, db'/ds = b^2 f'(b s) and ds/dk = 2 k.
struct ExactStepSize : torch::autograd::Function<ExactStepSize> {
  static Tensor forward(AutogradContext* context, const Tensor& b, const Tensor& k) {
    const Tensor lengths = squared_lengths(k, b.scalar_type(), b.size(-1));
    context->save_for_backward({b, k, lengths});
    const Tensor wide = b.to(at::kDouble);
    return (wide * mean_decay(wide * lengths)).to(b.scalar_type());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &k = saved[1], b = saved[0].to(at::kDouble), x = b * saved[2], up = grads[0].to(at::kDouble);
    Tensor d_length = up * b * b * mean_decay_slope(x);
    if (b.size(-1) > k.size(-2)) d_length = d_length.unflatten(-1, {k.size(-2), -1}).sum(-1);
    return {(up * at::exp(-x)).to(saved[0].scalar_type()),
            k * (2 * d_length).to(saved[0].scalar_type()).unsqueeze(-1).to(k.scalar_type())};
  }
};

}  // namespace

Tensor exact_step_size(const Tensor& b, const Tensor& k) {
  check(b.dim() + 1 == k.dim() && k.size(-2) > 0 && b.size(-1) % k.size(-2) == 0,
        "exact_step_size: b has {} heads and {} dimensions, k {} and {}", b.size(-1), b.dim(), k.size(-2),
        k.dim());
  return ExactStepSize::apply(b, k);
}

}  // namespace prism
