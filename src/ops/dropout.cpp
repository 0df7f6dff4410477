#include "prism/ops/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/kernels/dropout.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

constexpr int64_t kGrain = 32768;

kernels::DropoutMask mask_of(const Dropout& drop, const at::Tensor& x) {
  return {drop.seed, static_cast<uint32_t>(std::lround(drop.rate * 4294967296.0)), drop.row * x.size(-1),
          drop.staged.defined() ? drop.staged.const_data_ptr<int64_t>() : nullptr};
}

/// The hash of kernels/dropout.h from 64-bit ATen operations, for other devices: indices [first, end), which
/// share their high word. uint8 [end - first].
at::Tensor composed_span(const kernels::DropoutMask& mask, int64_t first, int64_t end, at::Device device) {
  const int64_t high = first >> 32;
  const auto keys = kernels::dropout_keys(mask.seed, static_cast<uint64_t>(high));
  constexpr int64_t kWord = 0xFFFFFFFF;
  at::Tensor x = at::arange(first - (high << 32), end - (high << 32), at::device(device).dtype(at::kLong))
                     .bitwise_xor_(int64_t{keys.first});
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(int64_t{0x7feb352d}).bitwise_and_(kWord);
  x.add_(int64_t{keys.second}).bitwise_and_(kWord);
  // The product of two words may pass 2^63; its low word, all that counts, is right in wrapping arithmetic.
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(int64_t{0x846ca68b}).bitwise_and_(kWord);
  x.bitwise_xor_(x.bitwise_right_shift(16));
  return x.ge(int64_t{mask.threshold}).to(at::kByte);
}

/// The mask of `count` elements on a device without kernels.
at::Tensor composed_mask(const kernels::DropoutMask& mask, int64_t count, at::Device device) {
  std::vector<at::Tensor> spans;
  int64_t first = mask.first;
  const int64_t end = first + count;
  do {
    const int64_t stop = std::min(end, ((first >> 32) + 1) << 32);
    spans.push_back(composed_span(mask, first, stop, device));
    first = stop;
  } while (first < end);
  return spans.size() == 1 ? spans[0] : at::cat(spans);
}

at::Tensor mask_tensor(const Dropout& drop, const at::Tensor& like) {
  const auto mask = mask_of(drop, like);
  if (!like.is_cpu()) return composed_mask(mask, like.numel(), like.device()).view(like.sizes());
  at::Tensor out = at::empty(like.sizes(), like.options().dtype(at::kByte));
  auto* data = out.data_ptr<uint8_t>();
  at::parallel_for(0, out.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { kernels::dropout_mask(mask, data, begin, end); });
  return out;
}

/// Whether the CUDA kernel serves: x in fp32, bf16 or fp16, the residual in fp32 or x's type.
bool has_cuda_kernel(const at::Tensor& residual, const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cuda() && cuda_kernels() && cuda_kernels()->dropout_add && type != at::kDouble &&
         is_kernel_type(type) &&
         (!residual.defined() || residual.scalar_type() == at::kFloat || residual.scalar_type() == type);
}

at::Tensor sum_on_cuda(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop) {
  const at::Tensor x_c = x.contiguous(), residual_c = residual.defined() ? residual.contiguous() : residual;
  at::Tensor out = at::empty(x.sizes(), (residual.defined() ? residual : x).options());
  const c10::DeviceGuard device(x.device());
  const CudaKernels& table = *cuda_kernels();
  const char* problem = table.dropout_add(
      mask_of(drop, x), kernel_scalar(x.scalar_type()), kernel_scalar(out.scalar_type()),
      residual.defined() ? residual_c.const_data_ptr() : nullptr, x_c.const_data_ptr(),
      static_cast<float>(1 / (1 - drop.rate)), out.mutable_data_ptr(), x.numel(), table.current_stream());
  check_launch("dropout", problem);
  return out;
}

/// residual + dropout(x); `residual` may be undefined.
at::Tensor sum_with_dropped(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop) {
  if (has_cuda_kernel(residual, x)) return sum_on_cuda(residual, x, drop);
  check(!drop.staged.defined(),
        "dropout: a seed on the device needs the CUDA kernel, which is not for {} on {}",
        c10::toString(x.scalar_type()), x.device().str());
  const double scale = 1 / (1 - drop.rate);
  const bool fused = x.is_cpu() && x.scalar_type() == at::kFloat &&
                     (!residual.defined() || residual.scalar_type() == at::kFloat);
  if (!fused) {
    const at::Tensor dropped = x * (mask_tensor(drop, x).to(x.scalar_type()) * scale);
    return residual.defined() ? (residual + dropped).to(residual.scalar_type()) : dropped;
  }
  const at::Tensor x_c = x.contiguous();
  const at::Tensor residual_c = residual.defined() ? residual.contiguous() : residual;
  at::Tensor out = at::empty_like(x_c);
  const float* from = residual.defined() ? residual_c.const_data_ptr<float>() : nullptr;
  const auto mask = mask_of(drop, x);
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::dropout_add(mask, from, x_c.const_data_ptr<float>(), static_cast<float>(scale),
                         out.data_ptr<float>(), begin, end);
  });
  return out;
}

struct DropoutAdd : torch::autograd::Function<DropoutAdd> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const std::optional<at::Tensor>& residual, const at::Tensor& x,
                            const Dropout& drop) {
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["rate"] = drop.rate;
    context->saved_data["seed"] = static_cast<int64_t>(drop.seed);
    context->saved_data["row"] = drop.row;
    context->saved_data["staged"] = drop.staged;
    context->saved_data["dtype"] = x.scalar_type();
    return sum_with_dropped(residual.value_or(at::Tensor()), x, drop);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const Dropout drop{context->saved_data["rate"].toDouble(),
                       static_cast<uint64_t>(context->saved_data["seed"].toInt()),
                       context->saved_data["row"].toInt(), context->saved_data["staged"].toTensor()};
    const auto dtype = context->saved_data["dtype"].toScalarType();
    const at::Tensor d_residual = context->saved_data["has_residual"].toBool() ? grads[0] : at::Tensor();
    return {d_residual, sum_with_dropped({}, grads[0], drop).to(dtype), at::Tensor()};
  }
};

}  // namespace

Dropout Dropout::at(uint64_t place) const {
  const auto index = static_cast<int64_t>(place);
  at::Tensor own;
  if (staged.defined()) own = staged.dim() == 2 ? staged.select(0, index) : staged.narrow(0, index + 1, 1);
  return {rate, stream_seed(seed, "place", place), row, own};
}

at::Tensor Dropout::seeds(int64_t places, int64_t each) const {
  at::Tensor table = at::empty({places, 1 + each}, at::kLong);
  auto* seed_of = table.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < places; ++i) {
    const Dropout place = at(static_cast<uint64_t>(i));
    *seed_of++ = static_cast<int64_t>(place.seed);
    for (int64_t j = 0; j < each; ++j)
      *seed_of++ = static_cast<int64_t>(place.at(static_cast<uint64_t>(j)).seed);
  }
  return table;
}

at::Tensor dropout(const at::Tensor& x, const Dropout& drop) {
  if (drop.rate == 0) return x;
  return DropoutAdd::apply(std::nullopt, x, drop);
}

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop) {
  check(residual.sizes() == x.sizes(), "dropout_add: the residual has {} elements, the branch {}",
        residual.numel(), x.numel());
  if (drop.rate == 0) return residual + x;
  return DropoutAdd::apply(std::optional<at::Tensor>(residual), x, drop);
}

}  // namespace prism
