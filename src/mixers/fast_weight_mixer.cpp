#include "prism/mixers/fast_weight_mixer.h"

#include <ATen/Functions.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

/// The tensors of `state` called name1, name2, ...
std::vector<at::Tensor> layers(const MixerState& state, const std::string& name) {
  std::vector<at::Tensor> found;
  for (auto at = state.tensors.find(name + "1"); at != state.tensors.end();
       at = state.tensors.find(name + std::to_string(found.size() + 1)))
    found.push_back(at->second);
  return found;
}

void put(MixerState& state, const std::string& name, const std::vector<at::Tensor>& layers) {
  for (size_t l = 0; l < layers.size(); ++l) state.tensors[name + std::to_string(l + 1)] = layers[l];
}

at::Tensor find(const MixerState& state, const std::string& name) {
  const auto found = state.tensors.find(name);
  return found == state.tensors.end() ? at::Tensor() : found->second;
}

}  // namespace

FastState load_fast_state(const MixerState* state, const std::vector<at::Tensor>& first, int64_t sequences) {
  FastState loaded;
  if (state && find(*state, "start1").defined()) {
    loaded.start = layers(*state, "start");
    loaded.weights = layers(*state, "W");
    if (loaded.weights.empty()) loaded.weights = loaded.start;
    loaded.momentum = layers(*state, "S");
    loaded.recent_k = find(*state, "recent_k");
    loaded.recent_v = find(*state, "recent_v");
    loaded.recent_weight = find(*state, "recent_weight");
    return loaded;
  }
  for (const at::Tensor& W : first) loaded.weights.push_back(W.unsqueeze(0).expand({sequences, -1, -1, -1}));
  return loaded;
}

void store_fast_state(const FastState& from, bool keep_weights, MixerState& state) {
  if (keep_weights) put(state, "W", from.weights);
  put(state, "S", from.momentum);
  put(state, "start", from.start);
  if (!from.recent_k.defined()) return;
  state.tensors["recent_k"] = from.recent_k;
  state.tensors["recent_v"] = from.recent_v;
  state.tensors["recent_weight"] = from.recent_weight;
}

at::Tensor FastWeightMixer::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mix(x_BTD, packing, nullptr);
}

at::Tensor FastWeightMixer::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  if (state.empty()) {
    const int64_t sequences = packing.sequences(x_BTD);
    state.lengths.assign(sequences, 0);
    if (has_convolution())
      state.tensors["conv"] =
          at::zeros({sequences, conv_weight_.size(0), conv_weight_.size(1) - 1}, x_BTD.options());
  }
  at::Tensor y = mix(x_BTD, packing, &state);
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor FastWeightMixer::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  return prefill(x_BD.unsqueeze(1), Packing::rows(), state).squeeze(1);
}

void FastWeightMixer::register_convolution(int64_t channels, int64_t width) {
  if (width > 0) conv_weight_ = register_parameter("conv_weight", initial::uniform({channels, width}, width));
}

at::Tensor FastWeightMixer::convolve(const at::Tensor& x, const Packing& packing, MixerState* state) const {
  return has_convolution() ? delta::convolve(x, conv_weight_, {}, packing, state) : at::silu(x);
}

int64_t FastWeightMixer::convolution_state_size() const {
  return has_convolution() ? conv_weight_.size(0) * (conv_weight_.size(1) - 1) : 0;
}

MemoryMixer::MemoryMixer(const Shape& shape, int64_t gates, int64_t width, const char* name)
    : shape_(shape), gates_(gates) {
  const auto sizes =
      delta::resolved_heads({shape.heads, shape.heads, shape.key_width, shape.value_width}, width, name);
  shape_.key_width = sizes.key_width, shape_.value_width = sizes.value_width;
  const int64_t values = shape.heads * shape_.value_width, qkv = 2 * shape.heads * shape_.key_width + values;
  in_weight_ = register_parameter("in_weight", initial::linear(qkv + gates * shape.heads, width));
  register_convolution(qkv, shape.conv_width);
  if (shape.output_norm)
    norm_weight_ = register_parameter("norm_weight", initial::ones({shape_.value_width}));
  if (shape.output_gate) gate_weight_ = register_parameter("gate_weight", initial::linear(values, width));
  out_weight_ = register_parameter("out_weight", initial::linear(width, values));
}

void MemoryMixer::register_memory(const std::vector<at::Tensor>& weights) {
  for (const at::Tensor& W : weights)
    W_.push_back(register_parameter("W" + std::to_string(W_.size() + 1), W));
}

MemoryMixer::Heads MemoryMixer::heads(const at::Tensor& x, const Packing& packing, MixerState* state) const {
  const int64_t H = shape_.heads, key = H * shape_.key_width, values = H * shape_.value_width;
  const auto parts = at::linear(x, in_weight_).split_with_sizes({2 * key + values, gates_ * H}, -1);
  const auto qkv = convolve(parts[0], packing, state).split_with_sizes({key, key, values}, -1);
  return {.q = l2_norm(qkv[0].unflatten(-1, {H, shape_.key_width})),
          .k = l2_norm(qkv[1].unflatten(-1, {H, shape_.key_width})),
          .v = qkv[2].unflatten(-1, {H, shape_.value_width}),
          .gates = delta::gate_typed(parts[1]).unflatten(-1, {gates_, H}).unbind(2)};
}

at::Tensor MemoryMixer::mix(const at::Tensor& x_BTD, const Packing& packing, MixerState* state) {
  FastWeightArgs args = memory(heads(x_BTD, packing, state), x_BTD);
  args.state = load_fast_state(state, first_weights(), packing.sequences(x_BTD));
  if (state) args.seen = state->lengths;
  args.mini_batch = shape_.mini_batch;
  if (packing.is_packed()) args.cu_seqlens = packing.cu_seqlens();
  FastWeightResult result = fast_weights(args);
  if (state) {
    for (at::Tensor* x : {&result.state.recent_k, &result.state.recent_v, &result.state.recent_weight})
      if (x->defined()) *x = at::constant_pad_nd(*x, {0, 0, shape_.window - 1 - x->size(2), 0});
    store_fast_state(result.state, /*keep_weights=*/true, *state);
  }
  return delta::gated_output(result.o.to(x_BTD.scalar_type()), x_BTD, gate_weight_, norm_weight_,
                             out_weight_);
}

int64_t MemoryMixer::state_size(int64_t /*tokens*/) const {
  int64_t weights = 0;
  for (const at::Tensor& W : W_) weights += W.numel();
  const int64_t recent = shape_.heads * (W_[0].size(1) + shape_.value_width + 1);
  return (shape_.momentum ? 3 : 2) * weights + (shape_.window - 1) * recent + convolution_state_size();
}

}  // namespace prism
