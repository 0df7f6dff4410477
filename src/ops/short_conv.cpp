#include "prism/ops/short_conv.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/kernels/short_conv.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool has_kernel(const Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cpu() && (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

Tensor empty_like_of(const Tensor& x) { return at::empty(x.sizes(), x.options()); }

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
    Tensor y = empty_like_of(x);
    kernels::short_conv_forward(inputs.shape, inputs.in, y.mutable_data_ptr(), nullptr);
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto offsets = context->saved_data["offsets"].toIntVector();
    const Inputs inputs(x, weight, bias, saved[3], offsets);
    Tensor held, dx = empty_like_of(x), dweight = empty_like_of(weight), dbias;
    if (bias.defined()) dbias = empty_like_of(bias);
    kernels::short_conv_backward(inputs.shape, inputs.in, view_of(grads[0].unsqueeze(2), 2, held),
                                 {.dx = dx.mutable_data_ptr(),
                                  .dweight = dweight.mutable_data_ptr(),
                                  .dbias = bias.defined() ? dbias.mutable_data_ptr() : nullptr});
    return {dx, dweight, dbias, Tensor(), Tensor()};
  }
};

/// Tokens of the batch, then the history of each sequence, then one row of zeros: [.., C]. Row numbers of
/// inputs, whether seen in this call or before it, follow from it.
struct RowTable {
  RowTable(const Tensor& x, int64_t taps, const Tensor& history)
      : tokens(x.size(0) * x.size(1)), before(taps - 1), has_history(history.defined()) {
    std::vector<Tensor> parts{x.reshape({-1, x.size(2)})};
    if (has_history) parts.push_back(history.transpose(1, 2).reshape({-1, x.size(2)}).to(x.scalar_type()));
    zero_row = tokens + (has_history ? history.size(0) * before : 0);
    parts.push_back(at::zeros({1, x.size(2)}, x.options()));
    rows = at::cat(parts);
  }
  /// The row of input `position` (negative: before this call) of sequence n, which starts at token `first`.
  int64_t row(int64_t n, int64_t first, int64_t position) const {
    if (position >= 0) return first + position;
    const int64_t back = before + position;
    return has_history && back >= 0 ? tokens + n * before + back : zero_row;
  }
  Tensor select(const std::vector<int64_t>& index) const {
    return rows.index_select(0, at::tensor(index, at::kLong).to(rows.device()));
  }
  int64_t tokens, before, zero_row;
  bool has_history;
  Tensor rows;
};

/// Any device, as a sum over taps.
Tensor composed(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& history,
                const std::vector<int64_t>& offsets) {
  const int64_t width = weight.size(1);
  const RowTable table(x, width, history);
  Tensor y = bias.defined() ? bias : at::zeros({1}, weight.options());
  for (int64_t j = 0; j < width; ++j) {
    std::vector<int64_t> tap(table.tokens);
    for (size_t n = 0; n + 1 < offsets.size(); ++n)
      for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t)
        tap[t] = table.row(static_cast<int64_t>(n), offsets[n], t - offsets[n] - j);
    y = y + table.select(tap) * weight.select(1, width - 1 - j);
  }
  return at::silu(y).view(x.sizes()).to(x.scalar_type());
}

void check_shapes(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check(x.dim() == 3, "short_conv: x has {} dimensions, expected [B,T,C]", x.dim());
  check(weight.dim() == 2 && weight.size(0) == x.size(2), "short_conv: x has {} channels, the weight {}",
        x.size(2), weight.size(0));
  check(!bias.defined() || bias.numel() == x.size(2), "short_conv: x has {} channels, the bias {}", x.size(2),
        bias.defined() ? bias.numel() : 0);
}

void check_history(const Tensor& x, const Tensor& weight, const Packing& packing, const Tensor& history) {
  if (!history.defined()) return;
  check(history.dim() == 3 && history.size(0) == packing.sequences(x) && history.size(1) == x.size(2) &&
            history.size(2) == weight.size(1) - 1,
        "short_conv: the history must be [{},{},{}]", packing.sequences(x), x.size(2), weight.size(1) - 1);
}

}  // namespace

Tensor short_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const Packing& packing,
                  const std::optional<Tensor>& history) {
  check_shapes(x, weight, bias);
  const Tensor before = history.value_or(Tensor());
  check_history(x, weight, packing, before);
  const auto offsets = offsets_of(x, packing);
  if (!has_kernel(x)) return composed(x, weight, bias, before, offsets);
  const auto typed = [&](const Tensor& t) { return t.to(x.scalar_type()).contiguous(); };
  const auto optional = [&](const Tensor& t) {
    return t.defined() ? std::optional<Tensor>(typed(t)) : std::nullopt;
  };
  return ShortConv::apply(x, typed(weight), optional(bias), optional(before), offsets);
}

Tensor short_conv_history(const Tensor& x, int64_t width, const Packing& packing,
                          const std::optional<Tensor>& history) {
  const RowTable table(x, width, history.value_or(Tensor()));
  const auto offsets = offsets_of(x, packing);
  std::vector<int64_t> last;
  for (size_t n = 0; n + 1 < offsets.size(); ++n)
    for (int64_t back = width - 1; back >= 1; --back)
      last.push_back(table.row(static_cast<int64_t>(n), offsets[n], offsets[n + 1] - offsets[n] - back));
  return table.select(last).view({packing.sequences(x), width - 1, x.size(2)}).transpose(1, 2).contiguous();
}

Tensor short_conv_step(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& history) {
  const Tensor window = at::cat({history, x.unsqueeze(2).to(history.scalar_type())}, 2);  // [B,C,W]
  Tensor y = (window * weight).sum(2);
  if (bias.defined()) y = y + bias;
  history.copy_(window.narrow(2, 1, history.size(2)));
  return at::silu(y).to(x.scalar_type());
}

}  // namespace prism
