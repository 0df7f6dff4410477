#pragma once
// Typed calls of our own operators through LibTorch's dispatcher: what tracers, autograd and autocast hook
// into.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

namespace prism {

template <class Signature, class... Args>
auto call_operator(const char* name, Args&&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(
      std::forward<Args>(args)...);
}

inline bool wants_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
inline bool wants_grad(const std::optional<at::Tensor>& tensor) { return tensor && wants_grad(*tensor); }

/// Whether a backward pass may follow a call with these tensors.
template <class... Tensors>
bool records_gradients(const Tensors&... tensors) {
  return c10::GradMode::is_enabled() && (wants_grad(tensors) || ...);
}

/// The empty tensor that an operator returns for what was not asked for; outputs may not share memory.
inline at::Tensor nothing(const at::Tensor& like) { return at::empty({0}, like.options()); }

/// Operators return an empty tensor for what was not asked for; C++ callers get an undefined one.
inline at::Tensor undefined_unless(bool wanted, const at::Tensor& tensor) {
  return wanted ? tensor : at::Tensor();
}

}  // namespace prism
