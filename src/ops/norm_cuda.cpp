#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "norm_call.h"
#include "prism/core/error.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the consumer of a norm will want: under autocast the residual stream is fp32 and what reads its norm,
/// a matrix product, is not.
at::ScalarType norm_type(const Tensor& x, const Tensor& gate) {
  const bool casts =
      x.scalar_type() == at::kFloat && !gate.defined() && at::autocast::is_autocast_enabled(at::kCUDA);
  return casts ? at::autocast::get_autocast_dtype(at::kCUDA) : x.scalar_type();
}

struct L2NormCuda : torch::autograd::Function<L2NormCuda> {
  static Tensor forward(AutogradContext* context, const Tensor& x, double eps) {
    context->save_for_backward({x});
    context->saved_data["eps"] = eps;
    const NormRows rows(x);
    Tensor y = empty_like_input(x);
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    check_launch("l2_norm", table.l2norm_forward(l2_norm_shape(rows, x, eps), rows.view, y.mutable_data_ptr(),
                                                 table.current_stream()));
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0];
    const NormRows rows(x), upstream(grads[0]);
    Tensor dx = empty_like_input(x);
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    const auto call = l2_norm_shape(rows, x, context->saved_data["eps"].toDouble());
    check_launch("l2_norm", table.l2norm_backward(call, rows.view, upstream.view, dx.mutable_data_ptr(),
                                                  table.current_stream()));
    return {dx, Tensor()};
  }
};

struct RmsNormCuda : torch::autograd::Function<RmsNormCuda> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& given_gate, double eps, at::ScalarType result) {
    const Tensor gate = given_gate.value_or(Tensor());
    context->save_for_backward({x, weight, gate});
    context->saved_data["eps"] = eps;
    const RmsNormCall inputs(x, weight, gate, eps);
    Tensor y = at::empty(x.sizes(), x.options().dtype(result));
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    check_launch("rms_norm", table.rms_norm_forward(inputs.shape, kernel_scalar(result), inputs.in,
                                                    y.mutable_data_ptr(), table.current_stream()));
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &gate = saved[2];
    const RmsNormCall inputs(x, weight, gate, context->saved_data["eps"].toDouble());
    const NormRows upstream(grads[0]);
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    Tensor dx = empty_like_input(x), dweight = empty_like_input(weight), dgate;
    if (gate.defined()) dgate = empty_like_input(gate);
    const Tensor workspace =
        at::empty({table.rms_norm_backward_workspace(inputs.shape)}, x.options().dtype(at::kByte));
    check_launch(
        "rms_norm",
        table.rms_norm_backward(inputs.shape, kernel_scalar(grads[0].scalar_type()), inputs.in, upstream.view,
                                {.dx = dx.mutable_data_ptr(),
                                 .dweight = dweight.mutable_data_ptr(),
                                 .dgate = gate.defined() ? dgate.mutable_data_ptr() : nullptr},
                                data_or_null(workspace), table.current_stream()));
    return {dx, dweight, dgate, Tensor(), Tensor()};
  }
};

}  // namespace

bool has_cuda_norm(const Tensor& x) {
  return x.is_cuda() && cuda_kernels() && cuda_kernels()->rms_norm_forward && is_kernel_type(x.scalar_type());
}

Tensor l2_norm_cuda(const Tensor& x, double eps) { return L2NormCuda::apply(x, eps); }

Tensor rms_norm_cuda(const Tensor& x, const Tensor& weight, const Tensor& gate, double eps) {
  const auto numbers = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return RmsNormCuda::apply(x, weight.to(numbers).contiguous(),
                            gate.defined() ? std::optional<Tensor>(gate) : std::nullopt, eps,
                            norm_type(x, gate));
}

}  // namespace prism
