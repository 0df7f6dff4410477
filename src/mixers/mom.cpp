// Mixture of Memories, arXiv 2502.13685; layer as in flash-linear-attention's layers/mom.py, where the
// convolution of a packed batch runs on across memories: here each memory has its own stream.
#include "prism/mixers/mom.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/core/error.h"
#include "prism/mixers/comba.h"
#include "prism/mixers/delta_net.h"
#include "prism/mixers/efla.h"
#include "prism/mixers/gated_delta_net.h"
#include "prism/mixers/preconditioned_delta_net.h"

namespace prism {
namespace {

template <class M>
std::shared_ptr<MatrixMixer> make(const DeltaConfig& shared, int64_t width) {
  typename M::Config config;
  static_cast<DeltaConfig&>(config) = shared;
  return std::make_shared<M>(config, width);
}

std::shared_ptr<MatrixMixer> make_base(const MomConfig& config, int64_t width) {
  switch (config.base) {
    case MemoryBase::kDeltaNet:
      return make<DeltaNet>(config, width);
    case MemoryBase::kEfla:
      return make<Efla>(config, width);
    case MemoryBase::kComba:
      return make<Comba>(config, width);
    case MemoryBase::kPreconditionedDeltaNet:
      return make<PreconditionedDeltaNet>(config, width);
    default:
      return make<GatedDeltaNet>(config, width);
  }
}

/// In full precision also under autocast: rounded scores would send tokens elsewhere.
at::Tensor precise_linear(const at::Tensor& x, const at::Tensor& weight) {
  const c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(x.device().type()));
  return at::linear(x.to(weight.scalar_type()), weight);
}

}  // namespace

Mom::Mom(const Config& config, int64_t width) : config_(config) {
  if (config.top_k > config.memories)
    usage_error("mom: top_k {} is more than the {} memories", config.top_k, config.memories);
  base_ = register_module("base", make_base(config, width));
  router_weight_ = register_parameter("router_weight", initial::linear(config.memories, width));
  const int64_t own = base_->in_weight().size(0) - base_->query_rows(), others = all_memories() - 1;
  if (others)
    memory_weight_ = register_parameter("memory_weight", initial::uniform({others, own, width}, width));
}

at::Tensor Mom::mix(const at::Tensor& x, const TokenStream& stream) {
  const at::Tensor tokens = x.flatten(0, -2);
  const Choice choice = route(tokens);
  if (is_training())
    set_auxiliary_loss(config_.balance * balance_loss(choice.probabilities, choice.memories));
  const MemoryRouting routing(choice.memories, stream.offsets(x), config_.memories, config_.shared_memory);
  const at::Tensor o = routing.combine(read(routing, project(routing, tokens), stream), choice.weights);
  auto shape = x.sizes().vec();
  shape.back() = o.size(-2);
  shape.push_back(o.size(-1));
  return base_->output(o.view(shape), x);
}

Mom::Choice Mom::route(const at::Tensor& x_ND) const {
  const at::Tensor probabilities = at::softmax(precise_linear(x_ND, router_weight_), -1);
  const auto [weights, memories] = at::topk(probabilities, config_.top_k, -1);
  return {probabilities, weights / weights.sum(-1, true), memories};
}

/// One product for all memories, also those that a token is not sent to: with a product of each memory's
/// tokens alone, a row's bits would depend on how many others are sent along. The last memory has the base's
/// own rows.
at::Tensor Mom::project(const MemoryRouting& routing, const at::Tensor& x_ND) const {
  const at::Tensor& base = base_->in_weight();
  const int64_t query = base_->query_rows(), own = base.size(0) - query, others = routing.memories() - 1;
  const at::Tensor weight = others ? at::cat({memory_weight_.flatten(0, 1), base}) : base;
  const auto parts = at::linear(x_ND, weight).split_with_sizes({others * own, query, own}, -1);
  const at::Tensor by_memory = at::cat({parts[0].unflatten(-1, {others, own}), parts[2].unsqueeze(-2)}, -2);
  return at::cat({routing.gather(parts[1]), routing.gather_own(by_memory)}, -1);
}

/// The base's read on the memories' states, [sequences, memories, ...] here and one after the other there.
at::Tensor Mom::read(const MemoryRouting& routing, const at::Tensor& projected,
                     const TokenStream& stream) const {
  if (!stream.has_state()) return base_->read(projected, {routing.packing(), nullptr});
  MixerState memories;
  for (const StateTensor& tensor : base_->state_tensors())
    memories.tensors[tensor.name] = stream.state(tensor.name)->transpose(0, 1).flatten(0, 1);
  memories.lengths.assign(routing.packing().offsets().size() - 1, 0);
  at::Tensor o = base_->read(projected, {routing.packing(), &memories});
  for (const auto& [name, tensor] : memories.tensors)
    stream.set_state(name, tensor.unflatten(0, {routing.memories(), -1}).transpose(0, 1).contiguous());
  return o;
}

std::vector<StateTensor> Mom::state_tensors() const {
  auto tensors = base_->state_tensors();
  for (StateTensor& tensor : tensors) tensor.shape.insert(tensor.shape.begin(), all_memories());
  return tensors;
}

}  // namespace prism
