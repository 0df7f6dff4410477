// One token a sequence, state in place: the recurrence itself.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <cmath>

#include "arguments.h"
#include "chunk_options.h"
#include "dispatch.h"
#include "prism/ops/vector_gate.h"
#include "vector_gate_call.h"

namespace prism {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                             std::optional<double>, bool, bool);

/// S <- diag(exp g) S - b e (R^T p)^T + k w^T;  o = scale q S, as batched products over the value heads.
Tensor step_composed(const GateCall& call, const Tensor& state) {
  const int64_t B = call.k.size(0), J = call.k.size(1), H = call.w.size(1), K = call.k.size(2),
                V = call.w.size(2);
  const at::ScalarType type = state.scalar_type();
  const auto row = [&](const Tensor& x) {  // [B,J,W] -> [B*H,1,W]
    return x.to(type).unsqueeze(2).expand({B, J, H / J, -1}).reshape({B * H, 1, x.size(-1)});
  };
  const Tensor old = state.reshape({B * H, K, V}), decay = call.g.exp().reshape({B * H, K, 1});
  const Tensor decayed = decay * old, key = row(call.k);
  Tensor next = at::baddbmm(decayed, key.transpose(1, 2), call.w.to(type).reshape({B * H, 1, V}));
  if (call.erases()) {
    const Tensor p = call.erase_read ? row(*call.erase_read) : key,
                 e = call.erase_key ? row(*call.erase_key) : key;
    Tensor u = at::bmm(p, call.erase_undecayed ? old : decayed);
    if (call.b) u = u * call.b->reshape({B * H, 1, 1});
    next.baddbmm_(e.transpose(1, 2), u, 1, -1);
  }
  state.copy_(next.view({B, H, K, V}));
  const Tensor query = row(call.q) * call.scale;
  const Tensor o = at::bmm(query, call.read_values ? next.transpose(1, 2) : next);
  return o.view({B, H, -1}).to(call.q.scalar_type());
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g, const Tensor& state,
            const OptionalTensor& b, const OptionalTensor& erase_read, const OptionalTensor& erase_key,
            std::optional<double> scale, bool erase_undecayed, bool read_values) {
  check(state.defined(), "vector_gate_step: state is undefined");
  const OptionalTensor strength = or_nothing(b), p = or_nothing(erase_read), e = or_nothing(erase_key),
                       start = state, none;
  GateCall call{q, k, w, g, strength, p, e, start, none, 1.0, erase_undecayed, read_values, 1};
  check_gate_arguments("vector_gate_step", 1, call);
  call.scale = scale.value_or(1.0 / std::sqrt(double(q.size(-1))));
  if (state.numel() == 0)
    return at::empty({q.size(0), w.size(1), read_values ? k.size(2) : w.size(2)}, q.options());
  return has_gate_kernel(q.scalar_type(), q.device(), k.size(2)) ? vector_gate_fused_step(call, state)
                                                                 : step_composed(call, state);
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g, const Tensor& state,
                 const OptionalTensor& b, const OptionalTensor& erase_read, const OptionalTensor& erase_key,
                 std::optional<double>, bool erase_undecayed, bool read_values) {
  const OptionalTensor start = state, none;
  check_gate_arguments(
      "vector_gate_step", 1,
      {q, k, w, g, b, erase_read, erase_key, start, none, 1.0, erase_undecayed, read_values, 1});
  return q.new_empty_symint({q.sym_size(0), w.sym_size(1), read_values ? k.sym_size(2) : w.sym_size(2)});
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g, const Tensor& state,
                     const OptionalTensor& b, const OptionalTensor& erase_read,
                     const OptionalTensor& erase_key, std::optional<double> scale, bool erase_undecayed,
                     bool read_values) {
  check(!records_gradients(q, k, w, g, state, b, erase_read, erase_key),
        "vector_gate_step: not differentiable; call it without gradients (torch.no_grad, at::NoGradGuard) or "
        "use "
        "vector_gate");
  at::AutoDispatchBelowADInplaceOrView guard;
  Tensor o = call_operator<StepSignature>("prism::vector_gate_step", q, k, w, g, state, b, erase_read,
                                          erase_key, scale, erase_undecayed, read_values);
  torch::autograd::increment_version(state);
  return o;
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, CompositeExplicitAutograd, m) { m.impl("vector_gate_step", step); }
TORCH_LIBRARY_IMPL(prism, Meta, m) { m.impl("vector_gate_step", step_meta); }
TORCH_LIBRARY_IMPL(prism, Autograd, m) { m.impl("vector_gate_step", step_autograd); }

Tensor vector_gate_step(const VectorGateArgs& a, const Tensor& state) {
  return call_operator<StepSignature>("prism::vector_gate_step", a.q, a.k, a.w, a.g, state, a.b, a.erase_read,
                                      a.erase_key, a.scale, a.erase_undecayed, a.read_values);
}

}  // namespace prism
