#include "prism/train/optimiser.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace prism {
namespace {

/// The arguments of one fused update.
struct Group {
  std::vector<at::Tensor> parameters, gradients, first, second, steps;
};

bool decays(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() >= 2 && name.find("embedding") == std::string::npos;
}

}  // namespace

at::Tensor clip_gradients(const NamedTensors& parameters, double max_norm) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  if (gradients.empty()) return at::zeros({});
  at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)));
  if (max_norm > 0) {
    const at::Tensor factor = at::clamp(at::reciprocal(norm.add(1e-6)).mul(max_norm), std::nullopt, 1.0);
    at::_foreach_mul_(gradients, factor);
  }
  return norm;
}

AdamW::AdamW(NamedTensors parameters, Options options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const auto& [name, parameter] : parameters_) {
    first_.push_back(at::zeros_like(parameter));
    second_.push_back(at::zeros_like(parameter));
  }
  if (parameters_.empty()) return;
  const at::TensorOptions scalar = parameters_[0].second.options().requires_grad(false);
  step_ = at::empty({}, scalar);
  rate_ = at::empty(
      {}, scalar.dtype(scalar.device().is_cpu() ? at::kDouble : at::kFloat));  // as the kernels read it
}

void AdamW::begin_step(double learning_rate) {
  ++steps_;
  if (parameters_.empty()) return;
  step_.fill_(static_cast<double>(steps_));
  rate_.fill_(learning_rate);
}

void AdamW::update(const at::Tensor& skip) {
  const c10::NoGradGuard no_grad;
  if (parameters_.empty()) return;
  std::optional<at::Tensor> found_infinite;
  if (skip.defined()) found_infinite = skip.to(at::kFloat);
  Group groups[2];
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (!parameter.grad().defined()) continue;
    Group& group = groups[decays(name, parameter)];
    group.parameters.push_back(parameter);
    group.gradients.push_back(parameter.grad());
    group.first.push_back(first_[i]);
    group.second.push_back(second_[i]);
    group.steps.push_back(step_);
  }
  for (const bool decayed : {false, true}) {
    Group& group = groups[decayed];
    if (group.parameters.empty()) continue;
    at::_fused_adamw_(group.parameters, group.gradients, group.first, group.second, {}, group.steps, rate_,
                      options_.beta1, options_.beta2, decayed ? options_.weight_decay : 0.0, options_.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/std::nullopt, found_infinite);
  }
}

void AdamW::zero_grad() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

NamedTensors AdamW::state() const {
  NamedTensors tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    tensors.emplace_back("first_moment." + parameters_[i].first, first_[i]);
    tensors.emplace_back("second_moment." + parameters_[i].first, second_[i]);
  }
  return tensors;
}

}  // namespace prism
