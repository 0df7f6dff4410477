#include "prism/mixers/recurrent_mixer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/key_value_cache.h"
#include "prism/distributed/sequence_parts.h"
#include "prism/ops/short_conv.h"

namespace prism {

std::optional<at::Tensor> TokenStream::state(const std::string& name) const {
  if (!state_) return std::nullopt;
  return state_->tensors.at(name);
}

void TokenStream::set_state(const std::string& name, const at::Tensor& tensor) const {
  if (state_) state_->tensors.at(name) = tensor;
}

std::vector<int64_t> TokenStream::offsets(const at::Tensor& x) const {
  if (packing_.is_packed()) return packing_.offsets();
  const int64_t length = single_ ? 1 : x.size(1);
  std::vector<int64_t> offsets(x.size(0) + 1);
  for (int64_t n = 0; n <= x.size(0); ++n) offsets[n] = n * length;
  return offsets;
}

at::Tensor TokenStream::positions(const at::Tensor& x) const {
  const auto lengths = state_ ? state_->lengths : std::vector<int64_t>{};
  if (single_) return at::tensor(lengths, at::kLong).to(x.device());
  return token_positions(x, packing_, lengths);
}

at::Tensor TokenStream::convolve(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& bias) const {
  if (ranks_) return short_conv_in_parts(x, weight, bias, packing_, *ranks_);
  if (!state_) return short_conv(x, weight, bias, packing_);
  const at::Tensor history = state_->tensors.at("conv");
  if (single_) return short_conv_step(x, weight, bias, history);
  at::Tensor convolved = short_conv(x, weight, bias, packing_, history);
  set_state("conv", short_conv_history(x, weight.size(1), packing_, history));
  return convolved;
}

at::Tensor TokenStream::recur(PrismChunkArgs args) const {
  if (single_)
    return prism_step(args.q, args.k, args.w, args.b, args.g, state_->tensors.at("S"), args.erase_read,
                      args.scale);
  if (ranks_) return prism_chunk_in_parts(args, packing_, *ranks_).o;
  args.initial_state = state("S");
  args.cu_seqlens = prism_chunk_offsets(args, packing_);
  args.return_final_state = state_ != nullptr;
  const PrismChunkResult result = prism_chunk(args);
  set_state("S", result.final_state);
  return result.o;
}

at::Tensor RecurrentMixer::forward(const at::Tensor& x_BTD, const Packing& packing) {
  return mix(x_BTD, {packing, nullptr});
}

at::Tensor RecurrentMixer::forward_in_parts(const at::Tensor& x_BTD, const Packing& packing, Ranks& ranks) {
  if (!takes_parts()) return Mixer::forward_in_parts(x_BTD, packing, ranks);
  return mix(x_BTD, TokenStream::part_of(packing, ranks));
}

at::Tensor RecurrentMixer::prefill(const at::Tensor& x_BTD, const Packing& packing, MixerState& state) {
  start(state, packing.sequences(x_BTD), x_BTD);
  at::Tensor y = mix(x_BTD, {packing, &state});
  state.advance(x_BTD, packing);
  return y;
}

at::Tensor RecurrentMixer::step(const at::Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  start(state, x_BD.size(0), x_BD);
  at::Tensor y = mix(x_BD, TokenStream::next_of(state));
  for (int64_t& length : state.lengths) ++length;
  return y;
}

int64_t RecurrentMixer::state_size(int64_t /*tokens*/) const {
  int64_t size = 0;
  for (const StateTensor& tensor : state_tensors()) size += c10::multiply_integers(tensor.shape);
  return size;
}

void RecurrentMixer::start(MixerState& state, int64_t sequences, const at::Tensor& x) const {
  if (!state.empty()) return;
  state.lengths.assign(sequences, 0);
  const auto sums = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  for (const StateTensor& tensor : state_tensors()) {
    std::vector<int64_t> shape{sequences};
    shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
    state.tensors[tensor.name] = at::zeros(shape, tensor.activations ? x.options() : sums);
  }
}

}  // namespace prism
