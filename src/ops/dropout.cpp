#include "prism/ops/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/kernels/dropout.h"

namespace prism {
namespace {

constexpr int64_t kGrain = 32768;

kernels::DropoutMask mask_of(const Dropout& drop) {
  return {drop.seed, static_cast<uint32_t>(std::lround(drop.rate * 4294967296.0))};
}

/// The hash of kernels/dropout.h from 64-bit ATen operations, for other devices. uint8 [n].
at::Tensor composed_mask(const kernels::DropoutMask& mask, int64_t count, at::Device device) {
  check(count < (int64_t{1} << 32), "dropout: {} elements on {} (at most 2^32)", count, device.str());
  const auto keys = kernels::dropout_keys(mask.seed, 0);
  constexpr int64_t kWord = 0xFFFFFFFF;
  at::Tensor x = at::arange(count, at::device(device).dtype(at::kLong)).bitwise_xor_(int64_t{keys.first});
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(int64_t{0x7feb352d}).bitwise_and_(kWord);
  x.add_(int64_t{keys.second}).bitwise_and_(kWord);
  // The product of two words may pass 2^63; its low word, all that counts, is right in wrapping arithmetic.
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(int64_t{0x846ca68b}).bitwise_and_(kWord);
  x.bitwise_xor_(x.bitwise_right_shift(16));
  return x.ge(int64_t{mask.threshold}).to(at::kByte);
}

at::Tensor mask_tensor(const Dropout& drop, const at::Tensor& like) {
  const auto mask = mask_of(drop);
  if (!like.is_cpu()) return composed_mask(mask, like.numel(), like.device()).view(like.sizes());
  at::Tensor out = at::empty(like.sizes(), like.options().dtype(at::kByte));
  auto* data = out.data_ptr<uint8_t>();
  at::parallel_for(0, out.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { kernels::dropout_mask(mask, data, begin, end); });
  return out;
}

/// residual + dropout(x); `residual` may be undefined.
at::Tensor sum_with_dropped(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop) {
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
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::dropout_add(mask_of(drop), from, x_c.const_data_ptr<float>(), static_cast<float>(scale),
                         out.data_ptr<float>(), begin, end);
  });
  return out;
}

struct DropoutAdd : torch::autograd::Function<DropoutAdd> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const std::optional<at::Tensor>& residual, const at::Tensor& x, double rate,
                            int64_t seed) {
    context->saved_data["has_residual"] = residual.has_value();
    context->saved_data["rate"] = rate;
    context->saved_data["seed"] = seed;
    context->saved_data["dtype"] = x.scalar_type();
    return sum_with_dropped(residual.value_or(at::Tensor()), x, {rate, static_cast<uint64_t>(seed)});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const Dropout drop{context->saved_data["rate"].toDouble(),
                       static_cast<uint64_t>(context->saved_data["seed"].toInt())};
    const auto dtype = context->saved_data["dtype"].toScalarType();
    const at::Tensor d_residual = context->saved_data["has_residual"].toBool() ? grads[0] : at::Tensor();
    return {d_residual, sum_with_dropped({}, grads[0], drop).to(dtype), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Dropout Dropout::at(uint64_t place) const { return {rate, stream_seed(seed, "place", place)}; }

at::Tensor dropout(const at::Tensor& x, const Dropout& drop) {
  if (drop.rate == 0) return x;
  return DropoutAdd::apply(std::nullopt, x, drop.rate, static_cast<int64_t>(drop.seed));
}

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, const Dropout& drop) {
  check(residual.sizes() == x.sizes(), "dropout_add: the residual has {} elements, the branch {}",
        residual.numel(), x.numel());
  if (drop.rate == 0) return residual + x;
  return DropoutAdd::apply(std::optional<at::Tensor>(residual), x, drop.rate,
                           static_cast<int64_t>(drop.seed));
}

}  // namespace prism
