#include "prism/ops/norm.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernel_views.h"
#include "norm_call.h"
#include "prism/core/error.h"
#include "prism/kernels/l2norm.h"
#include "prism/kernels/rms_norm.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct L2Norm : torch::autograd::Function<L2Norm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, double eps) {
    context->save_for_backward({x});
    context->saved_data["eps"] = eps;
    const NormRows rows(x);
    Tensor y = empty_like_input(x);
    kernels::l2norm_forward(l2_norm_shape(rows, x, eps), rows.view, y.mutable_data_ptr());
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0];
    const NormRows rows(x), upstream(grads[0]);
    Tensor dx = empty_like_input(x);
    kernels::l2norm_backward(l2_norm_shape(rows, x, context->saved_data["eps"].toDouble()), rows.view,
                             upstream.view, dx.mutable_data_ptr());
    return {dx, Tensor()};
  }
};

/// The gate may be absent.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& given_gate, double eps) {
    const Tensor gate = given_gate.value_or(Tensor());
    context->save_for_backward({x, weight, gate});
    context->saved_data["eps"] = eps;
    const RmsNormCall inputs(x, weight, gate, eps);
    Tensor y = empty_like_input(x);
    kernels::rms_norm_forward(inputs.shape, inputs.in, y.mutable_data_ptr());
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &gate = saved[2];
    const RmsNormCall inputs(x, weight, gate, context->saved_data["eps"].toDouble());
    const NormRows upstream(grads[0]);
    Tensor dx = empty_like_input(x), dweight = empty_like_input(weight), dgate;
    if (gate.defined()) dgate = empty_like_input(gate);
    kernels::rms_norm_backward(inputs.shape, inputs.in, upstream.view,
                               {.dx = dx.mutable_data_ptr(),
                                .dweight = dweight.mutable_data_ptr(),
                                .dgate = gate.defined() ? dgate.mutable_data_ptr() : nullptr});
    return {dx, dweight, dgate, Tensor()};
  }
};

/// The composed forms take sums in at least fp32.
Tensor widened(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

Tensor unit_mean_square(const Tensor& x, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps);
}

void check_weight(const Tensor& x, const Tensor& weight, const char* op) {
  check(weight.dim() == 1 && weight.size(0) == x.size(-1), "{}: x has {} channels, the weight {}", op,
        x.size(-1), weight.numel());
}

}  // namespace

Tensor l2_norm(const Tensor& x, double eps) {
  if (takes_cpu_kernel(x)) return L2Norm::apply(x, eps);
  if (has_cuda_norm(x)) return l2_norm_cuda(x, eps);
  const Tensor wide = widened(x);
  return (wide * at::rsqrt(wide.square().sum(-1, true) + eps)).to(x.scalar_type());
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_weight(x, weight, "rms_norm");
  if (takes_cpu_kernel(x))
    return RmsNorm::apply(x, weight.to(x.scalar_type()).contiguous(), std::nullopt, eps);
  if (has_cuda_norm(x)) return rms_norm_cuda(x, weight, {}, eps);
  return (unit_mean_square(widened(x), eps) * weight).to(x.scalar_type());
}

Tensor gated_rms_norm(const Tensor& o, const Tensor& gate, const Tensor& weight, double eps) {
  check_weight(o, weight, "gated_rms_norm");
  check(o.sizes() == gate.sizes(), "gated_rms_norm: o has {} elements, the gate {}", o.numel(), gate.numel());
  if (takes_cpu_kernel(o) && gate.scalar_type() == o.scalar_type())
    return RmsNorm::apply(o, weight.to(o.scalar_type()).contiguous(), std::optional<Tensor>(gate), eps);
  if (has_cuda_norm(o) && gate.scalar_type() == o.scalar_type()) return rms_norm_cuda(o, weight, gate, eps);
  return (unit_mean_square(widened(o), eps) * weight * at::silu(widened(gate))).to(o.scalar_type());
}

}  // namespace prism
