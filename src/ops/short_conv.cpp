#include "prism/ops/short_conv.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/kernels/short_conv.h"
#include "short_conv_call.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ShortConv : torch::autograd::Function<ShortConv> {
  struct Inputs {
    Inputs(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& history,
           const std::vector<int64_t>& offsets) {
      shape = {.dtype = kernel_scalar(x.scalar_type()),
               .sequences = {static_cast<int64_t>(offsets.size()) - 1, offsets.data()},
               .channels = x.size(2),
               .width = weight.size(1)};
      in = {.x = view_of(x.unsqueeze(2), 2, held),
            .weight = weight.const_data_ptr(),
            .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
            .initial_state = history.defined() && history.numel() ? history.const_data_ptr() : nullptr};
    }
    Tensor held;
    kernels::ShortConvShape shape;
    kernels::ShortConvInputs in;
  };

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& given_bias, const std::optional<Tensor>& given_history,
                        const std::vector<int64_t>& offsets) {
    const Tensor bias = given_bias.value_or(Tensor()), history = given_history.value_or(Tensor());
    context->save_for_backward({x, weight, bias, history});
    context->saved_data["offsets"] = offsets;
    const Inputs inputs(x, weight, bias, history, offsets);
    Tensor y = empty_like_input(x);
    kernels::short_conv_forward(inputs.shape, inputs.in, y.mutable_data_ptr(), nullptr);
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto offsets = context->saved_data["offsets"].toIntVector();
    const Inputs inputs(x, weight, bias, saved[3], offsets);
    Tensor held, dx = empty_like_input(x), dweight = empty_like_input(weight), dbias;
    if (bias.defined()) dbias = empty_like_input(bias);
    kernels::short_conv_backward(inputs.shape, inputs.in, view_of(grads[0].unsqueeze(2), 2, held),
                                 {.dx = dx.mutable_data_ptr(),
                                  .dweight = dweight.mutable_data_ptr(),
                                  .dbias = bias.defined() ? dbias.mutable_data_ptr() : nullptr});
    return {dx, dweight, dbias, Tensor(), Tensor()};
  }
};

void check_packing(const Tensor& x, const Packing& packing) {
  if (!packing.is_packed()) return;
  check(x.size(0) == 1 && x.size(1) == packing.offsets().back(),
        "short_conv: x has {} rows of {} tokens, the packed sequences are one row of {}", x.size(0),
        x.size(1), packing.offsets().back());
}

void check_shapes(const Tensor& x, const Tensor& weight, const Tensor& bias, const Packing& packing) {
  check(x.dim() == 3, "short_conv: x has {} dimensions, expected [B,T,C]", x.dim());
  check(weight.dim() == 2 && weight.size(0) == x.size(2), "short_conv: x has {} channels, the weight {}",
        x.size(2), weight.size(0));
  check(!bias.defined() || bias.numel() == x.size(2), "short_conv: x has {} channels, the bias {}", x.size(2),
        bias.defined() ? bias.numel() : 0);
  check_packing(x, packing);
}

void check_history(const Tensor& x, int64_t width, const Packing& packing, const Tensor& history) {
  if (!history.defined()) return;
  check(history.dim() == 3 && history.size(0) == packing.sequences(x) && history.size(1) == x.size(2) &&
            history.size(2) == width - 1,
        "short_conv: the history must be [{},{},{}]", packing.sequences(x), x.size(2), width - 1);
}

}  // namespace

Tensor short_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const Packing& packing,
                  const std::optional<Tensor>& history) {
  check_shapes(x, weight, bias, packing);
  const Tensor before = history.value_or(Tensor());
  check_history(x, weight.size(1), packing, before);
  if (short_conv_has_cuda_kernel(x, weight.size(1))) return short_conv_cuda(x, weight, bias, packing, before);
  if (!takes_cpu_kernel(x)) return short_conv_composed(x, weight, bias, packing, before);
  const auto typed = [&](const Tensor& t) { return t.to(x.scalar_type()).contiguous(); };
  const auto optional = [&](const Tensor& t) {
    return t.defined() ? std::optional<Tensor>(typed(t)) : std::nullopt;
  };
  return ShortConv::apply(x, typed(weight), optional(bias), optional(before), offsets_of(x, packing));
}

Tensor short_conv_history(const Tensor& x, int64_t width, const Packing& packing,
                          const std::optional<Tensor>& history) {
  check(x.dim() == 3 && width >= 1, "short_conv_history: x has {} dimensions and the width is {}", x.dim(),
        width);
  check_packing(x, packing);
  const Tensor before = history.value_or(Tensor());
  check_history(x, width, packing, before);
  return short_conv_has_cuda_kernel(x, width) ? short_conv_history_cuda(x, width, packing, before)
                                              : short_conv_history_composed(x, width, packing, before);
}

Tensor short_conv_step(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& history) {
  check(x.dim() == 2, "short_conv_step: x has {} dimensions, expected [B,C]", x.dim());
  check_shapes(x.unsqueeze(1), weight, bias, Packing::rows());
  check_history(x.unsqueeze(1), weight.size(1), Packing::rows(), history);
  const bool kernel = short_conv_has_cuda_kernel(x, weight.size(1)) && history.is_contiguous() &&
                      history.scalar_type() == x.scalar_type();
  return kernel ? short_conv_step_cuda(x, weight, bias, history)
                : short_conv_step_composed(x, weight, bias, history);
}

}  // namespace prism
