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

/// b' = b f(b s), s = |k|^2: db'/db = e^{-b s} and db'/ds = b^2 f'(b s).
struct ExactStepSize : torch::autograd::Function<ExactStepSize> {
  static Tensor forward(AutogradContext* context, const Tensor& b, const Tensor& length2) {
    context->save_for_backward({b, length2});
    const Tensor wide = b.to(at::kDouble);
    return (wide * mean_decay(wide * length2.to(at::kDouble))).to(b.scalar_type());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor b = saved[0].to(at::kDouble), x = b * saved[1].to(at::kDouble);
    const Tensor up = grads[0].to(at::kDouble);
    return {(up * at::exp(-x)).to(saved[0].scalar_type()),
            (up * b * b * mean_decay_slope(x)).to(saved[1].scalar_type())};
  }
};

}  // namespace

Tensor exact_step_size(const Tensor& b, const Tensor& k) {
  check(b.dim() + 1 == k.dim() && k.size(-2) > 0 && b.size(-1) % k.size(-2) == 0,
        "exact_step_size: b has {} heads and {} dimensions, k {} and {}", b.size(-1), b.dim(), k.size(-2),
        k.dim());
  Tensor length2 = k.to(b.scalar_type()).square().sum(-1);
  const int64_t repeats = b.size(-1) / k.size(-2);
  if (repeats > 1) length2 = length2.repeat_interleave(repeats, -1);
  return ExactStepSize::apply(b, length2);
}

}  // namespace prism
