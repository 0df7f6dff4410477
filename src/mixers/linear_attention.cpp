// Linear attention, arXiv 2006.16236.
#include "prism/mixers/linear_attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mixers/delta_common.h"
#include "prism/core/error.h"
#include "prism/ops/attention.h"

namespace prism {
namespace {

constexpr double kDenominatorEps = 1e-10;

LinearAttentionConfig checked(const LinearAttentionConfig& c) {
  if (c.normaliser && c.feature_map == FeatureMap::kIdentity)
    usage_error(
        "linear_attention: the normaliser needs positive features; set feature_map = elu or normaliser "
        "= false");
  if (c.normaliser && c.rotary)
    usage_error("linear_attention: rotary positions make features negative; set normaliser = false");
  return c;
}

/// [n, d] -> n / (d + eps). Autograd's own backward of narrow and division would take twice the passes.
struct Normalised : torch::autograd::Function<Normalised> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& o) {
    const int64_t width = o.size(-1) - 1;
    const at::Tensor denominator = o.narrow(-1, width, 1) + kDenominatorEps;
    at::Tensor y = o.narrow(-1, 0, width) / denominator;
    context->save_for_backward({y, denominator});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor numerator = grads[0] / saved[1];
    return {at::cat({numerator, -(numerator * saved[0]).sum(-1, /*keepdim=*/true)}, -1)};
  }
};

}  // namespace

at::Tensor with_normaliser_channel(const at::Tensor& v) {
  return at::cat({v, at::ones_like(v.narrow(-1, 0, 1))}, -1);
}

at::Tensor normalised(const at::Tensor& o) { return Normalised::apply(o); }

LinearAttention::LinearAttention(const Config& given, int64_t width)
    : MatrixMixer(
          [&] {
            const Config c = checked(given);
            const auto h =
                delta::resolved_heads({c.heads, c.key_heads, c.key_width, c.value_width}, width, kName);
            if (c.rotary && h.key_width % 2)
              usage_error("linear_attention: rotary positions need an even key_width, not {}", h.key_width);
            return Shape{h.heads, h.key_heads, h.key_width, h.value_width, 0};
          }(),
          width, 0),
      feature_map_(given.feature_map),
      normaliser_(given.normaliser),
      rotary_(given.rotary) {
  register_output(given.output_norm, given.output_gate);
}

at::Tensor LinearAttention::features(const at::Tensor& x, const TokenStream& stream) const {
  const at::Tensor mapped = feature_map_ == FeatureMap::kElu ? at::elu(x) + 1 : x;
  return rotary_ ? rope(mapped, stream.positions(x)) : mapped;
}

at::Tensor LinearAttention::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, none] = split(projected, stream);
  auto gate_shape = v.sizes().vec();
  gate_shape.pop_back();
  const at::Tensor zero = at::zeros(gate_shape, none.options());
  const at::Tensor o = stream.recur({.q = features(q, stream),
                                     .k = features(k, stream).unsqueeze(-3),
                                     .w = (normaliser_ ? with_normaliser_channel(v) : v).unsqueeze(-3),
                                     .b = zero,
                                     .g = zero});
  return normaliser_ ? normalised(o) : o;
}

std::vector<StateTensor> LinearAttention::state_tensors() const {
  return {{"S", {heads_, key_width_, value_width_ + (normaliser_ ? 1 : 0)}}};
}

}  // namespace prism
