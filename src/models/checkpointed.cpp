#include "models/checkpointed.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "prism/core/error.h"

namespace prism {
namespace {

/// How autocast treats the operations of one kind of device on this thread.
struct AutocastState {
  c10::DeviceType device;
  bool enabled, caches;
  at::ScalarType type;

  static AutocastState of(c10::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::is_autocast_cache_enabled(),
            at::autocast::get_autocast_dtype(device)};
  }
  void apply() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_cache_enabled(caches);
    at::autocast::set_autocast_dtype(device, type);
  }
};

/// While one lives, a state holds.
class AutocastAs {
 public:
  explicit AutocastAs(const AutocastState& state) : before_(AutocastState::of(state.device)) {
    state.apply();
  }
  ~AutocastAs() { before_.apply(); }
  AutocastAs(const AutocastAs&) = delete;
  AutocastAs& operator=(const AutocastAs&) = delete;

 private:
  AutocastState before_;
};

/// What backward needs to call the work again.
struct SecondCall : torch::CustomClassHolder {
  SecondCall(CheckpointedWork given, const AutocastState& state) : work(std::move(given)), autocast(state) {}
  /// With a graph, which autocast's casts of the weights belong to: it finds none of others and leaves none.
  std::vector<at::Tensor> run(const at::Tensor& x) const {
    const AutocastAs as_at_first(autocast);
    const at::AutoGradMode record(true);
    at::autocast::clear_cache();
    std::vector<at::Tensor> outputs = work(x);
    at::autocast::clear_cache();
    return outputs;
  }
  CheckpointedWork work;
  AutocastState autocast;
};

struct CheckpointedCall : torch::autograd::Function<CheckpointedCall> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static Tensors forward(Context* context, const at::Tensor& x, const at::TensorList& parameters,
                         const CheckpointedWork& work) {
    AutocastState autocast = AutocastState::of(x.device().type());
    context->saved_data["again"] = c10::IValue::make_capsule(c10::make_intrusive<SecondCall>(work, autocast));
    context->set_materialize_grads(false);
    Tensors saved{x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    autocast.caches = false;  // casts without a graph are nothing to those who need gradients
    const AutocastAs without_cache(autocast);
    return work(x);
  }

  static Tensors backward(Context* context, const Tensors& upstream) {
    Tensors inputs = context->get_saved_variables();  // x and the parameters
    inputs[0] = inputs[0].detach().requires_grad_(inputs[0].requires_grad());
    const auto again = context->saved_data["again"].toCapsule();
    const Tensors outputs = static_cast<const SecondCall&>(*again).run(inputs[0]);
    check(outputs.size() == upstream.size(), "checkpointed: {} outputs in forward, {} in backward",
          upstream.size(), outputs.size());
    return gradients(outputs, upstream, inputs);
  }

 private:
  /// Of the arguments of forward: x, the parameters, and none of the work.
  static Tensors gradients(const Tensors& outputs, const Tensors& upstream, const Tensors& inputs) {
    Tensors all(inputs.size() + 1), reached, arrived, wanted;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (upstream[i].defined() && outputs[i].requires_grad())
        reached.push_back(outputs[i]), arrived.push_back(upstream[i]);
    for (const at::Tensor& input : inputs)
      if (input.requires_grad()) wanted.push_back(input);
    if (reached.empty()) return all;
    const Tensors found = torch::autograd::grad(reached, wanted, arrived, /*retain_graph=*/false,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    auto next = found.begin();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad()) all[i] = *next++;
    return all;
  }
};

}  // namespace

std::vector<at::Tensor> checkpointed(const CheckpointedWork& work, const at::Tensor& x,
                                     const std::vector<at::Tensor>& parameters) {
  return CheckpointedCall::apply(x, at::TensorList(parameters), work);
}

}  // namespace prism
