// TTT-Linear and TTT-MLP, arXiv 2407.04620; layer as in test-time-training/ttt-lm-pytorch.
#include "prism/mixers/ttt.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/key_value_cache.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/ops/attention.h"

namespace prism {
namespace {

constexpr int64_t kExpansion = 4;  // of the inner perceptron
constexpr double kOutNormEps = 1e-6;

TttConfig resolved(TttConfig c, int64_t width, int64_t layers, const char* name) {
  if (c.base_lr == 0) c.base_lr = layers == 1 ? 1 : 0.1;
  if (!c.head_width) {
    if (width % c.heads)
      usage_error("{}: {} heads do not divide the model width {}; set head_width", name, c.heads, width);
    c.head_width = width / c.heads;
  }
  if (c.head_width % 2)
    usage_error("{}: rotary positions need an even head_width, not {}", name, c.head_width);
  return c;
}

/// N(0, 0.02) weights and a bias of 0 in the last row.
at::Tensor inner_weight(int64_t heads, int64_t inputs, int64_t outputs) {
  return at::cat({initial::normal({heads, inputs, outputs}, 0.02), initial::zeros({heads, 1, outputs})}, 1);
}

}  // namespace

Ttt::Ttt(const TttConfig& config, int64_t width, int64_t layers, const char* name)
    : config_(resolved(config, width, layers, name)) {
  const auto& c = config_;
  const int64_t K = c.head_width, hidden = layers == 1 ? K : kExpansion * K;
  in_weight_ = register_parameter("in_weight", initial::linear(3 * channels(), width));
  register_convolution(3 * channels(), c.conv_width);
  lr_weight_ = register_parameter("lr_weight", initial::normal({c.heads, width}, 0.02));
  lr_bias_ = register_parameter("lr_bias", initial::zeros({c.heads}));
  place_ = register_parameter("place", initial::zeros({c.mini_batch}));
  W_.push_back(register_parameter("W1", inner_weight(c.heads, K, hidden)));
  if (layers == 2) W_.push_back(register_parameter("W2", inner_weight(c.heads, hidden, K)));
  norm_weight_ = register_parameter("norm_weight", initial::ones({c.heads, K}));
  norm_bias_ = register_parameter("norm_bias", initial::zeros({c.heads, K}));
  out_norm_weight_ = register_parameter("out_norm_weight", initial::ones({channels()}));
  out_norm_bias_ = register_parameter("out_norm_bias", initial::zeros({channels()}));
  if (c.output_gate) gate_weight_ = register_parameter("gate_weight", initial::linear(channels(), width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, channels()));
}

FastWeightArgs Ttt::arguments(const at::Tensor& x, const Packing& packing, MixerState* state) const {
  const auto& c = config_;
  at::Tensor qkv = at::linear(x, in_weight_);
  if (has_convolution()) qkv = convolve(qkv, packing, state);
  const auto parts = qkv.unflatten(-1, {3, c.heads, c.head_width}).unbind(2);
  const std::vector<int64_t> seen = state ? state->lengths : std::vector<int64_t>{};
  const at::Tensor places = token_positions(x, packing, seen).remainder(c.mini_batch);
  const at::Tensor lr = delta::gate_typed(at::linear(x, lr_weight_)) + lr_bias_;
  const at::Tensor plain = 1 / at::arange(1, c.mini_batch + 1, place_.options());
  FastWeightArgs args{.q = rope(parts[0], places, c.rope_theta),
                      .k = rope(parts[1], places, c.rope_theta),
                      .v = parts[2],
                      .memory = {.bias = true,
                                 .exact_gelu = false,
                                 .norm_weight = norm_weight_,
                                 .norm_bias = norm_bias_,
                                 .loss = InnerLoss::kHalfSquare},
                      .rule = {.gradient_weight = at::sigmoid(lr) * (c.base_lr / double(c.head_width)),
                               .place_step = (plain + place_).clamp_min(0),
                               .accumulate = false},
                      .state = load_fast_state(state, W_, packing.sequences(x)),
                      .seen = seen,
                      .mini_batch = c.mini_batch};
  if (packing.is_packed()) args.cu_seqlens = packing.cu_seqlens();
  return args;
}

at::Tensor Ttt::mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) {
  const FastWeightResult result = fast_weights(arguments(x_BTD, packing, state));
  if (state) store_fast_state(result.state, /*keep_weights=*/false, *state);
  return output(result.o, x_BTD);
}

at::Tensor Ttt::output(const at::Tensor& o_BTHK, const at::Tensor& x_BTD) const {
  at::Tensor y =
      at::layer_norm(o_BTHK.flatten(-2), {channels()}, out_norm_weight_, out_norm_bias_, kOutNormEps);
  if (gate_weight_.defined()) y = y * at::gelu(at::linear(x_BTD, gate_weight_), "tanh");
  return at::linear(y, out_weight_);
}

int64_t Ttt::state_size(int64_t /*tokens*/) const {
  int64_t weights = 0;
  for (const at::Tensor& W : W_) weights += W.numel();
  return 2 * weights + convolution_state_size();
}

}  // namespace prism
