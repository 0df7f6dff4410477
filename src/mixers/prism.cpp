// Equations 9-18 and algorithm 1 of arXiv 2602.10796; symbols as in docs/prism.md.
#include "prism/mixers/prism.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/distributed/sequence_parts.h"
#include "prism/ops/norm.h"
#include "prism/ops/prism_chunk.h"
#include "prism/ops/short_conv.h"

namespace prism {
namespace {

/// [..., parts * last] -> [..., parts..., last].
at::Tensor unflatten(const at::Tensor& x, at::IntArrayRef parts) { return x.unflatten(-1, parts); }

/// x [..., M r] through M matrices up [M, O, r] -> [..., M O].
at::Tensor through_rank(const at::Tensor& x, const at::Tensor& up) {
  return at::einsum("...mr,mor->...mo", {unflatten(x, {up.size(0), up.size(2)}), up}).flatten(-2);
}

/// In x's dtype, as the products that x comes from.
at::Tensor with_bias(const at::Tensor& x, const at::Tensor& bias) { return x + bias.to(x.scalar_type()); }

PrismConfig resolved(PrismConfig config, int64_t width) {
  const auto heads = delta::resolved_heads(
      {config.heads, config.key_heads, config.key_width, config.value_width}, width, "prism");
  config.key_heads = heads.key_heads;
  config.key_width = heads.key_width;
  config.value_width = heads.value_width;
  if (config.steps >= 1 && config.heads * config.value_width != width)
    usage_error(
        "prism: H V = D needed when L >= 1 (the anchor): heads {} x value_width {} = {}, model width {}",
        config.heads, config.value_width, config.heads * config.value_width, width);
  if (config.conv == ConvPlace::kProjections && config.steps >= 1)
    usage_error("prism: conv = projections needs steps = 0, not {}: with steps the convolution is the anchor",
                config.steps);
  if (config.conv == ConvPlace::kProjections && config.anchor == Anchor::kToken)
    usage_error("prism: anchor = token has no convolution to place at conv = projections");
  return config;
}

}  // namespace

Prism::Prism(const Config& config, int64_t width) : config_(resolved(config, width)), width_(width) {
  const auto& c = config_;
  if (has_conv()) {
    conv_weight_ =
        register_parameter("conv_weight", initial::uniform({conv_channels(), c.conv_width}, c.conv_width));
    if (c.conv == ConvPlace::kAnchor)
      conv_bias_ = register_parameter("conv_bias", initial::uniform({conv_channels()}, c.conv_width));
  }
  const auto rows = columns();
  in_weight_ = register_parameter(
      "in_weight", initial::linear(std::accumulate(rows.begin(), rows.end(), int64_t{0}), width));
  if (c.solver_rank && later_keys())
    later_keys_weight_ = register_parameter(
        "later_keys_weight",
        initial::uniform({later_keys(), c.key_heads * c.key_width, c.solver_rank}, c.solver_rank));
  if (c.gain == Gain::kLearned && c.steps) {
    if (c.solver_rank)
      gains_weight_ = register_parameter("gains_weight",
                                         initial::uniform({c.steps, width, c.solver_rank}, c.solver_rank));
    gain_bias_ = register_parameter("gain_bias", initial::ones({c.steps * width}));
  }
  register_decay(c.heads);
  const int64_t outputs = c.heads * c.value_width;
  if (c.output_norm) norm_weight_ = register_parameter("norm_weight", initial::ones({c.value_width}));
  if (c.output_gate) gate_weight_ = register_parameter("gate_weight", initial::linear(outputs, width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, outputs));
}

void Prism::register_decay(int64_t heads) {
  if (config_.decay == Decay::kMamba) {
    A_log_ = register_parameter("A_log", initial::mamba_A_log(heads));
    dt_bias_ = register_parameter("dt_bias", initial::mamba_dt_bias(heads));
  } else if (config_.decay == Decay::kSigmoid) {
    decay_bias_ = register_parameter("decay_bias", initial::half_life_bias(heads));
  }
}

bool Prism::separate_erase() const {
  return config_.solver_key == SolverKey::kSeparate || config_.solver_key == SolverKey::kSharedSeparate;
}
bool Prism::shared_key() const {
  return config_.solver_key == SolverKey::kSharedTied || config_.solver_key == SolverKey::kSharedSeparate;
}
bool Prism::has_conv() const { return config_.anchor == Anchor::kShortConv; }
int64_t Prism::writes_a_token() const { return std::max<int64_t>(config_.steps, 1); }
int64_t Prism::full_keys() const { return separate_erase() ? 2 : 1; }
int64_t Prism::later_keys() const { return shared_key() ? 0 : writes_a_token() - 1; }

int64_t Prism::conv_channels() const {
  if (config_.conv == ConvPlace::kAnchor) return width_;
  return (1 + full_keys()) * config_.key_heads * config_.key_width + config_.heads * config_.value_width;
}

std::vector<int64_t> Prism::columns() const {
  const auto& c = config_;
  const int64_t key = c.key_heads * c.key_width, value = c.heads * c.value_width;
  const auto solver = [&](int64_t full) { return c.solver_rank ? c.solver_rank : full; };
  const int64_t gains = c.gain == Gain::kLearned ? c.steps * solver(value) : 0;
  const int64_t decay = c.decay == Decay::kNone ? 0 : c.heads;
  const int64_t step_sizes = writes_a_token() + (separate_erase() ? 1 : 0);
  return {key, full_keys() * key, later_keys() * solver(key), value, gains, step_sizes * c.heads, decay};
}

at::Tensor Prism::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mix(x_BTD, packing, nullptr);
}

at::Tensor Prism::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  start(state, packing.sequences(x_BTD), x_BTD);
  at::Tensor y = mix(x_BTD, packing, &state);
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor Prism::mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) {
  const auto convolve = [&](const at::Tensor& input) {
    return delta::convolve(input, conv_weight_, conv_bias_, packing, state);
  };
  const Token t = token(x_BTD, convolve);
  PrismChunkArgs args{.q = t.q, .k = t.k, .w = t.w, .b = t.b, .g = t.g};
  if (state) args.initial_state = state->tensors.at("S");
  args.cu_seqlens = prism_chunk_offsets(args, packing);
  args.return_final_state = state != nullptr;
  const PrismChunkResult result = prism_chunk(args);  // eq. 18
  if (state) state->tensors["S"] = result.final_state;
  return output(result.o, x_BTD);
}

int64_t Prism::shortest_part() const { return has_conv() ? std::max<int64_t>(config_.conv_width - 1, 1) : 1; }

at::Tensor Prism::forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks) {
  const auto convolve = [&](const at::Tensor& input) {
    return short_conv_in_parts(input, conv_weight_, conv_bias_, packing, ranks);
  };
  const Token t = token(x_BTD, convolve);
  const PrismChunkArgs args{.q = t.q, .k = t.k, .w = t.w, .b = t.b, .g = t.g};
  return output(prism_chunk_in_parts(args, packing, ranks).o, x_BTD);
}

at::Tensor Prism::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  start(state, x_BD.size(0), x_BD);
  const auto convolve = [&](const at::Tensor& input) {
    return short_conv_step(input, conv_weight_, conv_bias_, state.tensors.at("conv"));
  };
  const Token t = token(x_BD, convolve);
  for (int64_t& length : state.lengths) ++length;
  return output(prism_step(t.q, t.k, t.w, t.b, t.g, state.tensors.at("S")), x_BD);
}

Prism::Token Prism::token(const at::Tensor& x, const Convolution& convolve) const {
  const auto& c = config_;
  at::Tensor u = x;
  if (c.conv == ConvPlace::kAnchor) u = has_conv() ? convolve(x) : at::silu(x);  // eq. 9
  Projected p = project(u);
  if (c.conv == ConvPlace::kProjections) {
    const at::Tensor convolved = convolve(at::cat({p.q, p.keys, p.v}, -1));
    const auto parts = convolved.split_with_sizes({p.q.size(-1), p.keys.size(-1), p.v.size(-1)}, -1);
    p.q = parts[0], p.keys = parts[1], p.v = parts[2];
  }
  const int64_t keys = full_keys() + later_keys();
  const at::Tensor beta = at::sigmoid(unflatten(delta::gate_typed(p.beta), {-1, c.heads}));  // eq. 11
  return {.q = l2_norm(unflatten(p.q, {c.key_heads, c.key_width})),
          .k = l2_norm(unflatten(p.keys, {keys, c.key_heads, c.key_width})),  // eq. 12
          .w = writes(u, p, beta),
          .b = beta.select(-2, 0),
          .g = log_decay(delta::gate_typed(p.decay))};
}

Prism::Projected Prism::project(const at::Tensor& u) const {
  const auto& c = config_;
  const auto sizes = columns();
  const at::Tensor projected = delta::aligned_linear(u, in_weight_);
  if (!c.solver_rank) {
    const auto parts = delta::split_columns(
        projected, {sizes[0], sizes[1] + sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]});
    // Added here, not in the product: there its gradient would sum over every column of the projection.
    const at::Tensor gains = gain_bias_.defined() ? with_bias(parts[3], gain_bias_) : parts[3];  // eq. 13
    return {parts[0], parts[1], parts[2], gains, parts[4], parts[5]};
  }
  const auto parts = delta::split_columns(projected, sizes);
  Projected p{parts[0], parts[1], parts[3], parts[4], parts[5], parts[6]};
  if (later_keys_weight_.defined())
    p.keys = at::cat({p.keys, through_rank(parts[2], later_keys_weight_)}, -1);
  if (gains_weight_.defined()) p.gains = with_bias(through_rank(parts[4], gains_weight_), gain_bias_);
  return p;
}

at::Tensor Prism::writes(const at::Tensor& u, const Projected& p, const at::Tensor& beta) const {
  const auto& c = config_;
  const at::Tensor v = unflatten(p.v, {c.heads, c.value_width});
  const at::Tensor step_size = beta.narrow(-2, separate_erase() ? 1 : 0, writes_a_token());
  at::Tensor w;
  if (c.steps == 0) {
    w = (v.unsqueeze(-3) * step_size.unsqueeze(-1)).to(v.scalar_type());
  } else {
    std::optional<at::Tensor> gains;
    if (c.gain == Gain::kLearned)
      gains = unflatten(p.gains.to(v.scalar_type()), {c.steps, c.heads, c.value_width});
    const at::Tensor anchor = unflatten(u.to(v.scalar_type()), {c.heads, c.value_width});
    w = prism_refine(v, anchor, gains, step_size, c.nonlinearity, c.residual).w;  // eq. 14-16
  }
  if (shared_key()) w = w.sum(-3, true);
  if (separate_erase()) w = at::cat({at::zeros_like(w.narrow(-3, 0, 1)), w}, -3);
  return w;
}

at::Tensor Prism::log_decay(const at::Tensor& a) const {
  if (config_.decay == Decay::kNone) {  // a has no column
    std::vector<int64_t> shape = a.sizes().vec();
    shape.back() = config_.heads;
    return a.new_zeros(shape);
  }
  if (config_.decay == Decay::kSigmoid) return at::log_sigmoid(a + decay_bias_);
  return delta::mamba_log_decay(a, A_log_, dt_bias_);
}

at::Tensor Prism::output(const at::Tensor& o, const at::Tensor& x) const {
  return delta::gated_output(o, x, gate_weight_, norm_weight_, out_weight_);
}

void Prism::start(MixerState& state, int64_t sequences, const at::Tensor& x) const {
  if (!state.empty()) return;
  const auto& c = config_;
  state.lengths.assign(sequences, 0);
  state.tensors["S"] = delta::zero_state(sequences, {c.heads, c.key_width, c.value_width}, x);
  if (has_conv())
    state.tensors["conv"] = at::zeros({sequences, conv_channels(), c.conv_width - 1}, x.options());
}

int64_t Prism::state_size(int64_t /*tokens*/) const {
  const auto& c = config_;
  return c.heads * c.key_width * c.value_width + (has_conv() ? (c.conv_width - 1) * conv_channels() : 0);
}

}  // namespace prism
