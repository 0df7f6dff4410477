// Gated DeltaNet, arXiv 2412.06464; layer as in flash-linear-attention's layers/gated_deltanet.py.
#include "prism/mixers/gated_delta_net.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"
#include "prism/ops/prism_chunk.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

GatedDeltaNetConfig resolved(GatedDeltaNetConfig c, int64_t width) {
  const auto heads =
      delta::resolved_heads({c.heads, c.key_heads, c.key_width, c.value_width}, width, "gated_delta_net");
  c.key_heads = heads.key_heads, c.key_width = heads.key_width, c.value_width = heads.value_width;
  return c;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const Config& config, int64_t width) : config_(resolved(config, width)) {
  const auto& c = config_;
  const int64_t values = c.heads * c.value_width;
  conv_weight_ =
      register_parameter("conv_weight", initial::uniform({conv_channels(), c.conv_width}, c.conv_width));
  in_weight_ = register_parameter("in_weight", initial::linear(conv_channels() + 2 * c.heads, width));
  A_log_ = register_parameter("A_log", initial::mamba_A_log(c.heads));
  dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(c.heads));
  if (c.output_norm) norm_weight_ = register_parameter("norm_weight", initial::ones({c.value_width}));
  if (c.output_gate) gate_weight_ = register_parameter("gate_weight", initial::linear(values, width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, values));
}

int64_t GatedDeltaNet::conv_channels() const {
  return 2 * config_.key_heads * config_.key_width + config_.heads * config_.value_width;
}

at::Tensor GatedDeltaNet::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mix(x_BTD, packing, nullptr);
}

at::Tensor GatedDeltaNet::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  start(state, packing.sequences(x_BTD), x_BTD);
  const at::Tensor y = mix(x_BTD, packing, &state);
  state.advance(x_BTD, packing);
  return y;
}

template <class Convolve>
GatedDeltaNet::Token GatedDeltaNet::token(const at::Tensor& x, const Convolve& convolve) const {
  const auto& c = config_;
  const int64_t key = c.key_heads * c.key_width;
  const auto parts =
      at::linear(x, in_weight_).split_with_sizes({conv_channels(), c.heads, c.heads}, -1);  // q k v, b, a
  const auto qkv = convolve(parts[0]).split_with_sizes({key, key, c.heads * c.value_width}, -1);
  const at::Tensor b = at::sigmoid(delta::gate_typed(parts[1]));
  const at::Tensor v = qkv[2].unflatten(-1, {1, c.heads, c.value_width});
  return {.q = l2_norm(qkv[0].unflatten(-1, {c.key_heads, c.key_width})),
          .k = l2_norm(qkv[1].unflatten(-1, {1, c.key_heads, c.key_width})),
          .w = (v * b.unsqueeze(-2).unsqueeze(-1)).to(v.scalar_type()),
          .b = b,
          .g = delta::mamba_log_decay(delta::gate_typed(parts[2]), A_log_, dt_bias_)};
}

at::Tensor GatedDeltaNet::mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) {
  const Token t = token(
      x_BTD, [&](const at::Tensor& qkv) { return delta::convolve(qkv, conv_weight_, {}, packing, state); });
  PrismChunkArgs args{.q = t.q, .k = t.k, .w = t.w, .b = t.b, .g = t.g};
  if (packing.is_packed()) args.cu_seqlens = packing.cu_seqlens();
  if (state) args.initial_state = state->tensors.at("S");
  args.return_final_state = state != nullptr;
  const PrismChunkResult result = prism_chunk(args);
  if (state) state->tensors["S"] = result.final_state;
  return output(result.o, x_BTD);
}

at::Tensor GatedDeltaNet::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  start(state, x_BD.size(0), x_BD);
  const Token t = token(x_BD, [&](const at::Tensor& qkv) {
    return short_conv_step(qkv, conv_weight_, {}, state.tensors.at("conv"));
  });
  for (int64_t& length : state.lengths) ++length;
  return output(prism_step(t.q, t.k, t.w, t.b, t.g, state.tensors.at("S")), x_BD);
}

at::Tensor GatedDeltaNet::output(const at::Tensor& o, const at::Tensor& x) const {
  return delta::gated_output(o, x, gate_weight_, norm_weight_, out_weight_);
}

void GatedDeltaNet::start(MixerState& state, int64_t sequences, const at::Tensor& x) const {
  if (!state.empty()) return;
  const auto& c = config_;
  state.lengths.assign(sequences, 0);
  state.tensors["S"] = delta::zero_state(sequences, {c.heads, c.key_width, c.value_width}, x);
  state.tensors["conv"] = at::zeros({sequences, conv_channels(), c.conv_width - 1}, x.options());
}

int64_t GatedDeltaNet::state_size(int64_t /*tokens*/) const {
  const auto& c = config_;
  return c.heads * c.key_width * c.value_width + (c.conv_width - 1) * conv_channels();
}

}  // namespace prism
