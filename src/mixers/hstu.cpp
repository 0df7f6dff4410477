// HSTU, arXiv 2402.17152; layer as in meta-recsys/generative-recommenders
// research/modeling/sequential/hstu.py.
#include "prism/mixers/hstu.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/key_value_cache.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/ops/hstu_attention.h"

namespace prism {
namespace {

constexpr double kUnitNormEps = 1e-6, kDeviation = 0.02;

at::Tensor unit_norm(const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}, {}, {}, kUnitNormEps); }

HstuConfig resolved(HstuConfig c, int64_t width) {
  for (int64_t* own : {&c.key_width, &c.value_width}) {
    if (*own) continue;
    if (width % c.heads)
      usage_error("hstu: {} heads do not divide the model width {}; set key_width and value_width", c.heads,
                  width);
    *own = width / c.heads;
  }
  return c;
}

/// Seconds of the new tokens since the first token of each sequence, continuing the cached ones.
at::Tensor extended_seconds(const TokenGrid& grid, const at::Tensor& gaps, const at::Tensor& cached) {
  at::Tensor since = grid.queries(gaps).cumsum(1);
  if (cached.defined() && cached.size(1) > 0) {
    const at::Tensor last = (at::tensor(grid.past(), at::kLong).to(gaps.device()) - 1).clamp_min(0);
    since = since + cached.gather(1, last.unsqueeze(1));  // a sequence without tokens has 0 there
  }
  return grid.extended(cached, grid.tokens(since));
}

/// The time of the event after each new token; the newest takes its own. [sequences, longest]
at::Tensor next_seconds(const TokenGrid& grid, const at::Tensor& seconds, int64_t longest) {
  const auto index = at::TensorOptions(at::kLong).device(seconds.device());
  const auto column = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).to(seconds.device()).unsqueeze(1);
  };
  const at::Tensor next = column(grid.past()) + at::arange(1, longest + 1, index);
  return seconds.gather(1, at::minimum(next, (column(grid.lengths()) - 1).clamp_min(0)));
}

}  // namespace

Hstu::Hstu(const Config& config, int64_t width, int64_t max_length)
    : config_(resolved(config, width)), max_length_(max_length) {
  const auto& c = config_;
  const int64_t values = c.heads * c.value_width;
  in_weight_ = register_parameter(
      "in_weight", initial::normal({2 * values + 2 * c.heads * c.key_width, width}, kDeviation));
  pos_weight_ = register_parameter("pos_weight", initial::normal({2 * max_length - 1}, kDeviation));
  if (c.time_bias)
    time_weight_ = register_parameter("time_weight", initial::normal({c.time_buckets + 1}, kDeviation));
  out_weight_ = register_parameter("out_weight", initial::linear(width, values));
  out_bias_ = register_parameter("out_bias", initial::uniform({width}, values));
}

at::Tensor Hstu::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return forward_with_gaps(x_BTD, packing, {});
}

at::Tensor Hstu::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  return prefill_with_gaps(x_BTD, packing, {}, state);
}

at::Tensor Hstu::step(const at::Tensor& x_BD, MixerState& state) { return step_with_gaps(x_BD, {}, state); }

at::Tensor Hstu::forward_with_gaps(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps) {
  MixerState fresh;
  return mix(x_BTD, packing, gaps, fresh, dropout_now());
}

at::Tensor Hstu::prefill_with_gaps(const at::Tensor& x_BTD, const Packing& packing, const at::Tensor& gaps,
                                   MixerState& state) {
  at::Tensor y = mix(x_BTD, packing, gaps, state, {});
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor Hstu::step_with_gaps(const at::Tensor& x_BD, const at::Tensor& gaps, MixerState& state) {
  const at::NoGradGuard no_gradient;
  const at::Tensor row = gaps.defined() ? gaps.unsqueeze(1) : gaps;
  return prefill_with_gaps(x_BD.unsqueeze(1), Packing::rows(), row, state).squeeze(1);
}

at::Tensor Hstu::mix(const at::Tensor& x, const Packing& packing, const at::Tensor& gaps, MixerState& state,
                     const Dropout& drop) const {
  const auto& c = config_;
  const int64_t values = c.heads * c.value_width, keys = c.heads * c.key_width;
  const auto uvqk =
      at::silu(at::linear(unit_norm(x), in_weight_)).split_with_sizes({values, values, keys, keys}, -1);
  const TokenGrid grid(x, packing, &state);
  for (const int64_t length : grid.lengths())
    check(length <= max_length_, "hstu: a sequence of {} tokens, max_length is {}", length, max_length_);
  const auto continue_cache = [&](const char* name, const at::Tensor& tokens) {
    return state.tensors[name] = grid.extended(state.tensors[name], tokens);
  };
  HstuArgs args{.q = grid.queries(uvqk[2].unflatten(-1, {c.heads, c.key_width})),
                .k = continue_cache("k", uvqk[3].unflatten(-1, {c.heads, c.key_width})),
                .v = continue_cache("v", uvqk[1].unflatten(-1, {c.heads, c.value_width})),
                .pos_w = pos_weight_,
                .ts_w = time_weight_,
                .seconds = {},
                .query_seconds = {},
                .past = grid.past(),
                .lengths = grid.lengths(),
                .n = max_length_};
  if (c.time_bias) {
    const at::Tensor known =
        gaps.defined() ? gaps : at::zeros({x.size(0), x.size(1)}, at::dtype(at::kLong).device(x.device()));
    at::Tensor& cached = state.tensors["seconds"];
    args.seconds = cached = extended_seconds(grid, known, cached);
    args.query_seconds = next_seconds(grid, cached, args.q.size(1));
  }
  const at::Tensor o = grid.tokens(hstu_attention(args)).flatten(-2);
  const at::Tensor gated = dropout(uvqk[0] * unit_norm(o), drop.at(0));
  return x + at::linear(gated, out_weight_, out_bias_).to(x.scalar_type());
}

int64_t Hstu::state_size(int64_t tokens) const {
  const auto& c = config_;
  return tokens * (c.heads * (c.key_width + c.value_width) + (c.time_bias ? 1 : 0));
}

}  // namespace prism
