#include "mixers/delta_common.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <numeric>
#include <vector>

#include "mixers/threaded_linear.h"
#include "ops/wide.h"
#include "prism/core/error.h"
#include "prism/ops/norm.h"
#include "prism/ops/short_conv.h"

namespace prism::delta {

at::Tensor gate_typed(const at::Tensor& x) { return wide(x); }

at::Tensor aligned_linear(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kUnit = 64, kFewTokens = 64;
  const int64_t missing = (kUnit - weight.size(0) % kUnit) % kUnit;
  if (!x.is_cuda() || missing == 0 || x.numel() < kFewTokens * x.size(-1)) return threaded_linear(x, weight);
  return at::linear(x, at::constant_pad_nd(weight, {0, 0, 0, missing}));
}

std::vector<at::Tensor> split_columns(const at::Tensor& projected, std::vector<int64_t> sizes) {
  const size_t wanted = sizes.size();
  const int64_t rest = projected.size(-1) - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (rest > 0) sizes.push_back(rest);
  std::vector<at::Tensor> parts = projected.split_with_sizes(sizes, -1);
  parts.resize(wanted);
  return parts;
}

at::Tensor mamba_log_decay(const at::Tensor& a, const at::Tensor& A_log, const at::Tensor& dt_bias) {
  return -at::exp(A_log) * at::softplus(a + dt_bias);
}

at::Tensor gated_write(const at::Tensor& b, const at::Tensor& v) {
  return (v * b.unsqueeze(-1)).to(v.scalar_type()).unsqueeze(-3);
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                    const Packing& packing, MixerState* state) {
  if (!state) return short_conv(input, weight, bias, packing);
  at::Tensor& history = state->tensors.at("conv");
  at::Tensor convolved = short_conv(input, weight, bias, packing, history);
  history = short_conv_history(input, weight.size(1), packing, history);
  return convolved;
}

at::Tensor gated_output(const at::Tensor& o, const at::Tensor& x, const at::Tensor& gate_weight,
                        const at::Tensor& norm_weight, const at::Tensor& out_weight, double norm_eps) {
  at::Tensor gate, y = o;
  if (gate_weight.defined())
    gate = threaded_linear(x, gate_weight).unflatten(-1, o.sizes().slice(o.dim() - 2));
  if (gate.defined() && norm_weight.defined())
    y = gated_rms_norm(o, gate, norm_weight, norm_eps);
  else if (norm_weight.defined())
    y = rms_norm(o, norm_weight, norm_eps);
  else if (gate.defined())
    y = o * at::silu(gate);
  return threaded_linear(y.flatten(-2), out_weight);
}

HeadShape resolved_heads(HeadShape shape, int64_t width, const char* mixer) {
  const auto share = [&](int64_t given, const char* name) {
    if (given) return given;
    if (width % shape.heads)
      usage_error("{}: {} heads do not divide the model width {}; set {}", mixer, shape.heads, width, name);
    return width / shape.heads;
  };
  shape.key_width = share(shape.key_width, "key_width");
  shape.value_width = share(shape.value_width, "value_width");
  if (!shape.key_heads) shape.key_heads = shape.heads;
  if (shape.heads % shape.key_heads)
    usage_error("{}: key_heads {} does not divide heads {}", mixer, shape.key_heads, shape.heads);
  return shape;
}

at::Tensor zero_state(int64_t sequences, at::IntArrayRef shape, const at::Tensor& x) {
  std::vector<int64_t> full{sequences};
  full.insert(full.end(), shape.begin(), shape.end());
  return at::zeros(full, x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

}  // namespace prism::delta
