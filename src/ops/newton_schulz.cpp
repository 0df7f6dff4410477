#include "prism/ops/newton_schulz.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFloatsAtOnce = int64_t(1)
                                  << 20;  // of x, in the backward; the iterations keep 15 times that

/// x [n,rows,columns].
Tensor iterate(const Tensor& x, const std::vector<NewtonSchulzStep>& steps) {
  const bool tall = x.size(1) > x.size(2);
  const Tensor wide = tall ? x.transpose(1, 2) : x;
  Tensor X = wide / (at::linalg_vector_norm(wide, 2, {1, 2}, true) + 1e-7);
  for (const auto& [a, b, c] : steps) {
    const Tensor A = at::bmm(X, X.transpose(1, 2));
    X = at::baddbmm(X, at::baddbmm(A, A, A, b, c), X, a);
  }
  return tall ? X.transpose(1, 2) : X;
}

struct NewtonSchulz : torch::autograd::Function<NewtonSchulz> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::vector<NewtonSchulzStep>& steps) {
    context->save_for_backward({x});
    std::vector<double> flat;
    for (const auto& step : steps) flat.insert(flat.end(), step.begin(), step.end());
    context->saved_data["steps"] = flat;
    return iterate(x, steps).contiguous();
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0];
    const auto flat = context->saved_data["steps"].toDoubleVector();
    std::vector<NewtonSchulzStep> steps(flat.size() / 3);
    for (size_t i = 0; i < flat.size(); ++i) steps[i / 3][i % 3] = flat[i];
    const int64_t part = std::max<int64_t>(1, kFloatsAtOnce / std::max<int64_t>(1, x.size(1) * x.size(2)));
    Tensor dx = at::empty_like(x, at::MemoryFormat::Contiguous);
    for (int64_t begin = 0; begin < x.size(0); begin += part) {
      const int64_t count = std::min(part, x.size(0) - begin);
      const at::AutoGradMode record(true);
      const Tensor leaf = x.narrow(0, begin, count).detach().requires_grad_();
      const auto gradient =
          torch::autograd::grad({iterate(leaf, steps)}, {leaf}, {grads[0].narrow(0, begin, count)});
      dx.narrow(0, begin, count).copy_(gradient[0]);
    }
    return {dx, Tensor()};
  }
};

}  // namespace

const std::vector<NewtonSchulzStep>& muon_steps() {
  static const std::vector<NewtonSchulzStep> steps(5, {3.4445, -4.7750, 2.0315});
  return steps;
}

const std::vector<NewtonSchulzStep>& lact_muon_steps() {
  static const std::vector<NewtonSchulzStep> steps{{4.0848, -6.8946, 2.9270},
                                                   {3.9505, -6.3029, 2.6377},
                                                   {3.7418, -5.5913, 2.3037},
                                                   {2.8769, -3.1427, 1.2046},
                                                   {2.8366, -3.0525, 1.2012}};
  return steps;
}

Tensor newton_schulz(const Tensor& x, const std::vector<NewtonSchulzStep>& steps) {
  const Tensor matrices = x.reshape({-1, x.size(-2), x.size(-1)});
  return NewtonSchulz::apply(matrices, steps).view(x.sizes());
}

}  // namespace prism
