#include "prism/ops/prism_refine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <mutex>
#include <string>

#include "dispatch.h"
#include "prism/core/log.h"
#include "prism_refine_call.h"

namespace prism {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using PublicSignature = RefineOutputs(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                      const OptionalTensor&, string_view, string_view, bool, string_view);
using BackwardSignature = RefineGradients(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                          const OptionalTensor&, string_view, string_view, string_view,
                                          const OptionalTensor&, const OptionalTensor&,
                                          const OptionalTensor&);

// Checks.

Nonlinearity nonlinearity_named(string_view name) {
  if (name == "gelu") return Nonlinearity::kGelu;
  check(name == "identity", "prism_refine: nonlinearity is \"{}\", expected gelu or identity", name);
  return Nonlinearity::kIdentity;
}

Residual residual_named(string_view name) {
  if (name == "subtract") return Residual::kSubtract;
  check(name == "none", "prism_refine: residual is \"{}\", expected subtract or none", name);
  return Residual::kNone;
}

void check_lead(const ArgumentCheck& check, const char* name, const Tensor& x, const Tensor& v) {
  for (int64_t d = 0; d < v.dim() - 2; ++d)
    check.size(name, x, d, "entries in a leading dimension", v.sym_size(d), "v has");
}

void check_arguments(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                     const OptionalTensor& beta) {
  ArgumentCheck check("prism_refine");
  if (!v.defined() || v.dim() < 2)
    check.fail_with("v is {}, expected [...,H,V]", v.defined() ? shape_text(v) : "undefined");
  const at::ScalarType type = v.scalar_type();
  check.tensor("v", v, v.dim(), "[...,H,V]");
  if (type != at::kDouble && type != at::kFloat && type != at::kBFloat16 && type != at::kHalf)
    check.fail_with("v is {}, expected Double, Float, BFloat16 or Half", c10::toString(type));
  if (v.sym_size(-1) < 1 || v.sym_size(-2) < 1) check.fail_with("heads and width must be at least 1");
  const auto check_heads = [&](const char* name, const Tensor& x, int64_t dim) {
    check.size(name, x, dim, "heads", v.sym_size(-2), "v has");
  };
  if (const Tensor* x = present(u)) {
    check.tensor("u", *x, v.dim(), "v's");
    check.dtype("u", *x, type, "as v");
    check_lead(check, "u", *x, v);
    check_heads("u", *x, -2);
    check.size("u", *x, -1, "channels a head", v.sym_size(-1), "v has");
  }
  if (const Tensor* x = present(p)) {
    check.tensor("p", *x, v.dim() + 1, "[...,L,H,V]");
    check.dtype("p", *x, type, "as v");
    check_lead(check, "p", *x, v);
    check_heads("p", *x, -2);
    check.size("p", *x, -1, "channels a head", v.sym_size(-1), "v has");
  }
  if (const Tensor* x = present(beta)) {
    check.tensor("beta", *x, v.dim(), "[...,L,H]");
    check.dtype("beta", *x, gate_type(type), fmt::format("beside v of {}", c10::toString(type)));
    check_lead(check, "beta", *x, v);
    check_heads("beta", *x, -1);
    if (present(p)) check.size("beta", *x, -2, "steps", present(p)->sym_size(-3), "p has");
  }
  if (!present(p) && !present(beta))
    check.fail_with("p or beta is needed: they say how many steps there are");
  const c10::SymInt steps = present(p) ? present(p)->sym_size(-3) : present(beta)->sym_size(-2);
  if (steps < 1) check.fail_with("at least one step is needed");
}

void say_once_that_composed_runs(const RefineCall& call) {
  if (call.v.device().is_meta()) return;
  static std::once_flag said;
  std::call_once(said, [&] {
    info("prism_refine: no fused kernel for {} and {} steps on {}; composing it from LibTorch's operations",
         c10::toString(call.v.scalar_type()), call.steps(),
         c10::DeviceTypeName(call.v.device().type(), true));
  });
}

bool use_fused(string_view implementation, const RefineCall& call) {
  if (implementation == "composed") return false;
  check(implementation == "auto" || implementation == "fused",
        "prism_refine: implementation is \"{}\", expected auto, fused or composed", implementation);
  const bool available = has_fused_refine(call.v, call.steps());
  check(available || implementation == "auto", "prism_refine: no fused kernel for {} and {} steps on {}",
        c10::toString(call.v.scalar_type()), call.steps(), call.v.device().str());
  if (!available) say_once_that_composed_runs(call);
  return available;
}

OptionalTensor or_nothing(const OptionalTensor& tensor) { return present(tensor) ? tensor : std::nullopt; }

// The passes.

RefineOutputs forward(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                      const OptionalTensor& beta, string_view nonlinearity, string_view residual,
                      bool return_delta_and_residual, string_view implementation) {
  check_arguments(v, u, p, beta);
  const RefineCall call{v, u, p, beta, nonlinearity_named(nonlinearity), residual_named(residual)};
  if (use_fused(implementation, call)) return prism_refine_fused(call, return_delta_and_residual);
  return prism_refine_composed(call, return_delta_and_residual);
}

RefineGradients backward(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                         const OptionalTensor& beta, string_view nonlinearity, string_view residual,
                         string_view implementation, const OptionalTensor& d_w, const OptionalTensor& d_delta,
                         const OptionalTensor& d_residual) {
  check_arguments(v, u, p, beta);
  const RefineCall call{v, u, p, beta, nonlinearity_named(nonlinearity), residual_named(residual)};
  const RefineUpstream upstream{d_w, d_delta, d_residual};
  if (use_fused(implementation, call)) return prism_refine_fused_backward(call, upstream);
  return prism_refine_composed_backward(call, upstream);
}

// Shapes for tracers.

RefineOutputs forward_meta(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                           const OptionalTensor& beta, string_view, string_view,
                           bool return_delta_and_residual, string_view) {
  check_arguments(v, u, p, beta);
  std::vector<c10::SymInt> sizes = v.sym_sizes().vec();
  sizes.insert(sizes.end() - 2, p ? p->sym_size(-3) : beta->sym_size(-2));
  const auto written = [&](bool wanted) {
    return wanted ? v.new_empty_symint(sizes) : v.new_empty_symint({0});
  };
  return {written(true), written(return_delta_and_residual),
          return_delta_and_residual ? v.new_empty_symint(v.sym_sizes()) : v.new_empty_symint({0})};
}

RefineGradients backward_meta(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                              const OptionalTensor& beta, string_view, string_view, string_view,
                              const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const auto like = [&](const OptionalTensor& x) {
    return x ? x->new_empty_symint(x->sym_sizes()) : v.new_empty_symint({0});
  };
  return {like(v), like(u), like(p), like(beta)};
}

// Autograd.

struct PrismRefineFunction : torch::autograd::Function<PrismRefineFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& v, const OptionalTensor& u,
                               const OptionalTensor& p, const OptionalTensor& beta,
                               const std::string& nonlinearity, const std::string& residual,
                               bool return_delta_and_residual, const std::string& implementation) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [w, delta, last] =
        call_operator<PublicSignature>("prism::_prism_refine_forward", v, u, p, beta, nonlinearity, residual,
                                       return_delta_and_residual, implementation);
    context->save_for_backward({v, u.value_or(Tensor()), p.value_or(Tensor()), beta.value_or(Tensor())});
    context->saved_data["nonlinearity"] = nonlinearity;
    context->saved_data["residual"] = residual;
    context->saved_data["implementation"] = implementation;
    context->set_materialize_grads(false);
    if (!return_delta_and_residual) context->mark_non_differentiable({delta, last});
    return {w, delta, last};
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    const auto text = [&](const char* name) -> const std::string& {
      return context->saved_data[name].toStringRef();
    };
    auto [dv, du, dp, dbeta] = call_operator<BackwardSignature>(
        "prism::_prism_refine_backward", saved[0], optional(saved[1]), optional(saved[2]), optional(saved[3]),
        text("nonlinearity"), text("residual"), text("implementation"), optional(upstream[0]),
        optional(upstream[1]), optional(upstream[2]));
    const Tensor none;
    return {dv,
            saved[1].defined() ? du : none,
            saved[2].defined() ? dp : none,
            saved[3].defined() ? dbeta : none,
            none,
            none,
            none,
            none};
  }
};

RefineOutputs refine_autograd(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                              const OptionalTensor& beta, string_view nonlinearity, string_view residual,
                              bool return_delta_and_residual, string_view implementation) {
  check_arguments(v, u, p, beta);
  const variable_list out = PrismRefineFunction::apply(
      v, or_nothing(u), or_nothing(p), or_nothing(beta), std::string(nonlinearity), std::string(residual),
      return_delta_and_residual, std::string(implementation));
  return {out[0], out[1], out[2]};
}

RefineOutputs refine_inference(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                               const OptionalTensor& beta, string_view nonlinearity, string_view residual,
                               bool return_delta_and_residual, string_view implementation) {
  return call_operator<PublicSignature>("prism::_prism_refine_forward", v, or_nothing(u), or_nothing(p),
                                        or_nothing(beta), nonlinearity, residual, return_delta_and_residual,
                                        implementation);
}

struct NoSecondDerivative : torch::autograd::Function<NoSecondDerivative> {
  static variable_list forward(AutogradContext*, const Tensor& v, const OptionalTensor& u,
                               const OptionalTensor& p, const OptionalTensor& beta,
                               const std::string& nonlinearity, const std::string& residual,
                               const std::string& implementation, const OptionalTensor& d_w,
                               const OptionalTensor& d_delta, const OptionalTensor& d_residual) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dv, du, dp, dbeta] =
        call_operator<BackwardSignature>("prism::_prism_refine_backward", v, u, p, beta, nonlinearity,
                                         residual, implementation, d_w, d_delta, d_residual);
    return {dv, du, dp, dbeta};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    fail("prism_refine: differentiable once; a second derivative is not available");
  }
};

RefineGradients backward_autograd(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p,
                                  const OptionalTensor& beta, string_view nonlinearity, string_view residual,
                                  string_view implementation, const OptionalTensor& d_w,
                                  const OptionalTensor& d_delta, const OptionalTensor& d_residual) {
  const variable_list out =
      NoSecondDerivative::apply(v, u, p, beta, std::string(nonlinearity), std::string(residual),
                                std::string(implementation), d_w, d_delta, d_residual);
  return {out[0], out[1], out[2], out[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, CompositeExplicitAutograd, m) {
  m.impl("prism_refine", refine_inference);
  m.impl("_prism_refine_forward", forward);
  m.impl("_prism_refine_backward", backward);
}
TORCH_LIBRARY_IMPL(prism, Meta, m) {
  m.impl("_prism_refine_forward", forward_meta);
  m.impl("_prism_refine_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(prism, Autograd, m) {
  m.impl("prism_refine", refine_autograd);
  m.impl("_prism_refine_backward", backward_autograd);
}

PrismRefineResult prism_refine(const Tensor& v, const Tensor& u, const std::optional<Tensor>& p,
                               const Tensor& beta, Nonlinearity nonlinearity, Residual residual,
                               bool return_delta_and_residual, Implementation implementation) {
  const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
  const auto [w, delta, last] =
      call_operator<PublicSignature>("prism::prism_refine", v, optional(u), p, optional(beta),
                                     nonlinearity == Nonlinearity::kGelu ? "gelu" : "identity",
                                     residual == Residual::kSubtract ? "subtract" : "none",
                                     return_delta_and_residual, implementation_name(implementation));
  return {w, undefined_unless(return_delta_and_residual, delta),
          undefined_unless(return_delta_and_residual, last)};
}

}  // namespace prism
