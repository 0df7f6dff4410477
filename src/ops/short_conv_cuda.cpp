// short_conv through the CUDA kernels of libprism_cuda.so.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "arguments.h"
#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/ops/cuda_kernels.h"
#include "short_conv_call.h"

namespace prism {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A call as the kernels take it; owns the copies of what they cannot read in place.
struct ConvKernelCall {
  /// x [B,T,C]; `offsets` on its device, undefined for rows.
  ConvKernelCall(const Tensor& x, int64_t width, const Tensor& history, const Tensor& offsets,
                 int64_t sequences)
      : shape{.dtype = kernel_scalar(x.scalar_type()),
              .tokens = x.size(0) * x.size(1),
              .sequences = sequences,
              .offsets = offsets.defined() ? offsets.const_data_ptr<int64_t>() : nullptr,
              .channels = x.size(2),
              .width = width} {
    in.x = view_of(x.unsqueeze(2), 2, held);
    if (history.defined() && history.numel()) in.initial_state = history.const_data_ptr();
  }
  ConvKernelCall(const ConvKernelCall&) = delete;
  ConvKernelCall& operator=(const ConvKernelCall&) = delete;

  void set_weights(const Tensor& weight, const Tensor& bias) {
    in.weight = weight.const_data_ptr();
    if (bias.defined()) in.bias = bias.const_data_ptr();
  }

  kernels::cuda::ShortConvCudaShape shape;
  kernels::ShortConvInputs in;
  Tensor held;
};

struct ShortConvCuda : torch::autograd::Function<ShortConvCuda> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const optional<Tensor>& given_bias, const optional<Tensor>& given_history,
                        const optional<Tensor>& given_offsets, int64_t sequences) {
    const Tensor bias = given_bias.value_or(Tensor()), history = given_history.value_or(Tensor()),
                 offsets = given_offsets.value_or(Tensor());
    context->save_for_backward({x, weight, bias, history, offsets});
    context->saved_data["sequences"] = sequences;
    const c10::OptionalDeviceGuard guard(x.device());
    ConvKernelCall call(x, weight.size(1), history, offsets, sequences);
    call.set_weights(weight, bias);
    Tensor y = empty_like_input(x);
    check_launch("short_conv", cuda_kernels()->short_conv_forward(call.shape, call.in, y.mutable_data_ptr(),
                                                                  cuda_kernels()->current_stream()));
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const c10::OptionalDeviceGuard guard(x.device());
    ConvKernelCall call(x, weight.size(1), saved[3], saved[4], context->saved_data["sequences"].toInt());
    call.set_weights(weight, bias);
    Tensor held;
    const kernels::View dy = view_of(grads[0].unsqueeze(2), 2, held);
    const auto wanted = [](const Tensor& input) {
      return input.defined() && input.requires_grad() ? empty_like_input(input) : Tensor();
    };
    const auto pointer = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
    const Tensor dx = wanted(x), dweight = wanted(weight), dbias = wanted(bias);
    const int64_t bytes =
        cuda_kernels()->short_conv_backward_workspace(call.shape, dweight.defined() || dbias.defined());
    const Tensor workspace = at::empty({bytes}, x.options().dtype(at::kByte));
    check_launch("short_conv", cuda_kernels()->short_conv_backward(
                                   call.shape, call.in, dy,
                                   {.dx = pointer(dx), .dweight = pointer(dweight), .dbias = pointer(dbias)},
                                   workspace.mutable_data_ptr(), cuda_kernels()->current_stream()));
    return {dx, dweight, dbias, Tensor(), Tensor(), Tensor()};
  }
};

optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? optional<Tensor>(tensor) : std::nullopt;
}

/// Weights are used in their own type, fp32 (fp64 beside fp64), whatever x is.
Tensor weights_beside(const Tensor& x, const Tensor& weight) {
  return weight.defined() ? weight.to(gate_type(x.scalar_type())).contiguous() : weight;
}
Tensor history_beside(const Tensor& x, const Tensor& history) {
  return history.defined() ? history.to(x.scalar_type()).contiguous() : history;
}
Tensor offsets_beside(const Tensor& x, const Packing& packing) {
  return packing.is_packed() ? packing.cu_seqlens_on(x.device()) : Tensor();
}

}  // namespace

bool short_conv_has_cuda_kernel(const Tensor& x, int64_t width) {
  return x.is_cuda() && cuda_kernels() && cuda_kernels()->short_conv_forward &&
         width <= kernels::cuda::kMaxConvTaps && is_kernel_type(x.scalar_type());
}

Tensor short_conv_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias, const Packing& packing,
                       const Tensor& history) {
  return ShortConvCuda::apply(x, weights_beside(x, weight), if_defined(weights_beside(x, bias)),
                              if_defined(history_beside(x, history)), if_defined(offsets_beside(x, packing)),
                              packing.sequences(x));
}

Tensor short_conv_history_cuda(const Tensor& x, int64_t width, const Packing& packing,
                               const Tensor& history) {
  const c10::OptionalDeviceGuard guard(x.device());
  const Tensor before = history_beside(x, history), offsets = offsets_beside(x, packing);
  const ConvKernelCall call(x, width, before, offsets, packing.sequences(x));
  Tensor last = at::empty({packing.sequences(x), x.size(2), width - 1}, x.options());
  check_launch("short_conv", cuda_kernels()->short_conv_history(call.shape, call.in, last.mutable_data_ptr(),
                                                                cuda_kernels()->current_stream()));
  return last;
}

Tensor short_conv_step_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& history) {
  const c10::OptionalDeviceGuard guard(x.device());
  const Tensor typed = weights_beside(x, weight), typed_bias = weights_beside(x, bias);
  ConvKernelCall call(x.unsqueeze(1), weight.size(1), Tensor(), Tensor(), x.size(0));
  call.set_weights(typed, typed_bias);
  Tensor y = empty_like_input(x);
  check_launch("short_conv",
               cuda_kernels()->short_conv_step(call.shape, call.in, history.mutable_data_ptr(),
                                               y.mutable_data_ptr(), cuda_kernels()->current_stream()));
  return y;
}

}  // namespace prism
