// short_conv from LibTorch's operations.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <vector>

#include "kernel_views.h"
#include "short_conv_call.h"

namespace prism {
namespace {

using at::Tensor;

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

}  // namespace

Tensor short_conv_composed(const Tensor& x, const Tensor& weight, const Tensor& bias, const Packing& packing,
                           const Tensor& history) {
  const auto offsets = offsets_of(x, packing);
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

Tensor short_conv_history_composed(const Tensor& x, int64_t width, const Packing& packing,
                                   const Tensor& history) {
  const RowTable table(x, width, history);
  const auto offsets = offsets_of(x, packing);
  std::vector<int64_t> last;
  for (size_t n = 0; n + 1 < offsets.size(); ++n)
    for (int64_t back = width - 1; back >= 1; --back)
      last.push_back(table.row(static_cast<int64_t>(n), offsets[n], offsets[n + 1] - offsets[n] - back));
  return table.select(last).view({packing.sequences(x), width - 1, x.size(2)}).transpose(1, 2).contiguous();
}

Tensor short_conv_step_composed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const Tensor& history) {
  const Tensor window = at::cat({history, x.unsqueeze(2).to(history.scalar_type())}, 2);  // [B,C,W]
  Tensor y = (window * weight).sum(2);
  if (bias.defined()) y = y + bias;
  history.copy_(window.narrow(2, 1, history.size(2)));
  return at::silu(y).to(x.scalar_type());
}

}  // namespace prism
