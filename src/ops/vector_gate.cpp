#include "prism/ops/vector_gate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "arguments.h"
#include "chunk_options.h"
#include "dispatch.h"
#include "prism_chunk_call.h"
#include "vector_gate_call.h"

namespace prism {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Signature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                             const OptionalTensor&, const OptionalTensor&,
                                             const OptionalTensor&, const OptionalTensor&,
                                             const OptionalTensor&, std::optional<double>, bool, bool, bool,
                                             int64_t, string_view);
using ForwardSignature = GateOutputs(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                     const OptionalTensor&, const OptionalTensor&, double, bool, bool,
                                     int64_t, string_view, bool, bool);
using BackwardSignature = GateGradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                        const OptionalTensor&, const OptionalTensor&, double, bool, bool,
                                        int64_t, string_view, const Tensor&, const OptionalTensor&,
                                        const OptionalTensor&);

// Defaults.

struct Resolved {
  double scale;
  int64_t chunk;
  string_view implementation;
};

int64_t width_of(const Tensor& tensor) { return tensor.sym_size(-1).guard_int(__FILE__, __LINE__); }

/// A power of two, and no longer than the longest sequence needs.
int64_t composed_chunk(const Tensor& q, const OptionalTensor& host_offsets, int64_t asked) {
  constexpr int64_t kLongest = 64;
  const int64_t wanted =
      asked ? asked : std::min(kLongest, longest_sequence(q, host_offsets).value_or(kLongest));
  return int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(wanted, 1))));
}

Resolved resolve(const Tensor& q, const Tensor& k, const OptionalTensor& host_offsets,
                 std::optional<double> scale, int64_t chunk, string_view implementation) {
  check(chunk >= 0, "vector_gate: chunk is {}, expected 0 (chosen) or the number of tokens", chunk);
  const int64_t K = width_of(k);
  const string_view chosen =
      chosen_implementation("vector_gate", implementation, has_gate_kernel(q.scalar_type(), q.device(), K), q,
                            fmt::format("{} with {} key channels on {}", c10::toString(q.scalar_type()), K,
                                        c10::DeviceTypeName(q.device().type(), true)));
  if (chosen == "composed") chunk = composed_chunk(q, host_offsets, chunk);
  if (chosen == "fused" && chunk == 0) chunk = fused_gate_chunk_length();
  return {scale.value_or(1.0 / std::sqrt(double(width_of(q)))), chunk, chosen};
}

// The passes.

GateOutputs empty_outputs(const GateCall& call, bool return_final_state, bool save_states) {
  const auto states = call.g.options();
  const auto zeros = [&](int64_t count) {
    return at::zeros({count, call.heads(), call.key_width(), call.value_width()}, states);
  };
  Tensor final_state = nothing(call.g);
  if (return_final_state)
    final_state = call.initial_state ? call.initial_state->clone(at::MemoryFormat::Contiguous)
                                     : zeros(call.sequences());
  return {at::empty({call.batch(), call.tokens(), call.heads(), call.output_width()}, call.q.options()),
          final_state, save_states ? zeros(call.cu_seqlens ? call.sequences() : 0) : nothing(call.g)};
}

GateOutputs forward(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                    const OptionalTensor& b, const OptionalTensor& erase_read,
                    const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                    const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed, bool read_values,
                    int64_t chunk, string_view implementation, bool return_final_state, bool save_states) {
  const GateCall call{
      q,           k,    w, g, b, erase_read, erase_key, initial_state, cu_seqlens, scale, erase_undecayed,
      read_values, chunk};
  check_gate_arguments("vector_gate", 2, call);
  if (k.numel() == 0) {
    sequence_starts("vector_gate", cu_seqlens, q.size(0), q.size(1));
    return empty_outputs(call, return_final_state, save_states);
  }
  if (implementation == "fused") return vector_gate_fused(call, return_final_state, save_states);
  if (implementation == "reference") return vector_gate_reference(call, return_final_state);
  return vector_gate_composed(call, return_final_state, save_states);
}

GateGradients empty_gradients(const GateCall& call, const OptionalTensor& d_final_state) {
  const auto zeros_like = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  const auto optional_zeros = [&](const OptionalTensor& x) { return x ? zeros_like(*x) : nothing(call.g); };
  Tensor dinitial = optional_zeros(call.initial_state);
  if (call.initial_state && d_final_state) dinitial.copy_(*d_final_state);
  return {zeros_like(call.q),
          zeros_like(call.k),
          zeros_like(call.w),
          zeros_like(call.g),
          optional_zeros(call.b),
          optional_zeros(call.erase_read),
          optional_zeros(call.erase_key),
          dinitial};
}

GateGradients backward(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                       const OptionalTensor& b, const OptionalTensor& erase_read,
                       const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                       const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed, bool read_values,
                       int64_t chunk, string_view implementation, const Tensor& chunk_states,
                       const OptionalTensor& d_o, const OptionalTensor& d_final_state) {
  const GateCall call{
      q,           k,    w, g, b, erase_read, erase_key, initial_state, cu_seqlens, scale, erase_undecayed,
      read_values, chunk};
  check_gate_arguments("vector_gate", 2, call);
  if (k.numel() == 0) return empty_gradients(call, d_final_state);
  if (implementation == "fused") return vector_gate_fused_backward(call, chunk_states, d_o, d_final_state);
  return vector_gate_composed_backward(call, chunk_states, d_o, d_final_state);
}

// Shapes for tracers.

GateOutputs forward_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                         const OptionalTensor& b, const OptionalTensor& erase_read,
                         const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                         const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed,
                         bool read_values, int64_t chunk, string_view, bool return_final_state,
                         bool save_states) {
  check_gate_arguments("vector_gate", 2,
                       {q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens, scale,
                        erase_undecayed, read_values, chunk});
  std::optional<c10::SymInt> packed;
  if (cu_seqlens) packed = cu_seqlens->sym_size(0) - 1;
  const c10::SymInt count = chunk_state_count(q.sym_size(0), q.sym_size(1), packed, chunk);
  const c10::SymInt heads = w.sym_size(2), K = k.sym_size(3), V = w.sym_size(3);
  const auto states = [&](bool wanted, const c10::SymInt& n) {
    return wanted ? g.new_empty_symint({n, heads, K, V}) : g.new_empty_symint({0});
  };
  return {q.new_empty_symint({q.sym_size(0), q.sym_size(1), heads, read_values ? K : V}),
          states(return_final_state, packed ? *packed : q.sym_size(0)), states(save_states, count)};
}

GateGradients backward_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                            const OptionalTensor& b, const OptionalTensor& erase_read,
                            const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                            const OptionalTensor&, double, bool, bool, int64_t, string_view, const Tensor&,
                            const OptionalTensor&, const OptionalTensor&) {
  const auto like = [](const Tensor& x) { return x.new_empty_symint(x.sym_sizes()); };
  const auto like_optional = [&](const OptionalTensor& x) { return x ? like(*x) : g.new_empty_symint({0}); };
  return {like(q),
          like(k),
          like(w),
          like(g),
          like_optional(b),
          like_optional(erase_read),
          like_optional(erase_key),
          like_optional(initial_state)};
}

// Autograd.

struct VectorGateFunction : torch::autograd::Function<VectorGateFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& w,
                               const Tensor& g, const OptionalTensor& b, const OptionalTensor& erase_read,
                               const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                               const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed,
                               bool read_values, int64_t chunk, const std::string& implementation,
                               bool return_final_state, bool save_states) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [o, final_state, chunk_states] = call_operator<ForwardSignature>(
        "prism::_vector_gate_forward", q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens, scale,
        erase_undecayed, read_values, chunk, implementation, return_final_state, save_states);
    const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    if (save_states)
      context->save_for_backward({q, k, w, g, given(b), given(erase_read), given(erase_key),
                                  given(initial_state), given(cu_seqlens), chunk_states});
    context->saved_data["scale"] = scale;
    context->saved_data["erase_undecayed"] = erase_undecayed;
    context->saved_data["read_values"] = read_values;
    context->saved_data["chunk"] = chunk;
    context->saved_data["implementation"] = implementation;
    context->set_materialize_grads(false);
    if (!return_final_state) context->mark_non_differentiable({final_state});
    return {o, final_state};
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    auto& data = context->saved_data;
    const std::string& implementation = data["implementation"].toStringRef();
    auto [dq, dk, dw, dg, db, dread, derase, dinitial] = call_operator<BackwardSignature>(
        "prism::_vector_gate_backward", saved[0], saved[1], saved[2], saved[3], optional(saved[4]),
        optional(saved[5]), optional(saved[6]), optional(saved[7]), optional(saved[8]),
        data["scale"].toDouble(), data["erase_undecayed"].toBool(), data["read_values"].toBool(),
        data["chunk"].toInt(), implementation, saved[9], optional(upstream[0]), optional(upstream[1]));
    const Tensor none;
    variable_list gradients = {dq, dk, dw, dg, db, dread, derase, dinitial};
    for (size_t i = 4; i < 8; ++i)
      if (!saved[i].defined()) gradients[i] = none;
    gradients.insert(gradients.end(), 8, none);  // cu_seqlens and the options
    return gradients;
  }
};

std::tuple<Tensor, Tensor> autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                                    const OptionalTensor& b, const OptionalTensor& erase_read,
                                    const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                                    const OptionalTensor& cu_seqlens, std::optional<double> scale,
                                    bool erase_undecayed, bool read_values, bool return_final_state,
                                    int64_t chunk, string_view implementation) {
  check_gate_arguments("vector_gate", 2,
                       {q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens, 1.0, erase_undecayed,
                        read_values, chunk});
  const OptionalTensor offsets = offsets_on_host(cu_seqlens);
  const Resolved resolved = resolve(q, k, offsets, scale, chunk, implementation);
  const bool save_states = records_gradients(q, k, w, g, b, erase_read, erase_key, initial_state);
  if (save_states && resolved.implementation == "reference")
    fail("vector_gate: the reference implementation has no gradient; use auto, fused or composed");
  const variable_list outputs = VectorGateFunction::apply(
      q, k, w, g, or_nothing(b), or_nothing(erase_read), or_nothing(erase_key), or_nothing(initial_state),
      offsets, resolved.scale, erase_undecayed, read_values, resolved.chunk,
      std::string(resolved.implementation), return_final_state, save_states);
  return {outputs[0], outputs[1]};
}

std::tuple<Tensor, Tensor> inference(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                                     const OptionalTensor& b, const OptionalTensor& erase_read,
                                     const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                                     const OptionalTensor& cu_seqlens, std::optional<double> scale,
                                     bool erase_undecayed, bool read_values, bool return_final_state,
                                     int64_t chunk, string_view implementation) {
  check_gate_arguments("vector_gate", 2,
                       {q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens, 1.0, erase_undecayed,
                        read_values, chunk});
  const OptionalTensor offsets = offsets_on_host(cu_seqlens);
  const Resolved resolved = resolve(q, k, offsets, scale, chunk, implementation);
  auto [o, final_state, chunk_states] = call_operator<ForwardSignature>(
      "prism::_vector_gate_forward", q, k, w, g, or_nothing(b), or_nothing(erase_read), or_nothing(erase_key),
      or_nothing(initial_state), offsets, resolved.scale, erase_undecayed, read_values, resolved.chunk,
      resolved.implementation, return_final_state, false);
  return {o, final_state};
}

/// The backward pass is an operator of its own; its derivative is a clear error instead of a silent zero.
struct NoSecondDerivative : torch::autograd::Function<NoSecondDerivative> {
  static variable_list forward(AutogradContext*, const Tensor& q, const Tensor& k, const Tensor& w,
                               const Tensor& g, const OptionalTensor& b, const OptionalTensor& erase_read,
                               const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                               const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed,
                               bool read_values, int64_t chunk, const std::string& implementation,
                               const Tensor& chunk_states, const OptionalTensor& d_o,
                               const OptionalTensor& d_final_state) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dq, dk, dw, dg, db, dread, derase, dinitial] = call_operator<BackwardSignature>(
        "prism::_vector_gate_backward", q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens,
        scale, erase_undecayed, read_values, chunk, implementation, chunk_states, d_o, d_final_state);
    return {dq, dk, dw, dg, db, dread, derase, dinitial};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    fail("vector_gate: differentiable once; a second derivative is not available");
  }
};

GateGradients backward_autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                                const OptionalTensor& b, const OptionalTensor& erase_read,
                                const OptionalTensor& erase_key, const OptionalTensor& initial_state,
                                const OptionalTensor& cu_seqlens, double scale, bool erase_undecayed,
                                bool read_values, int64_t chunk, string_view implementation,
                                const Tensor& chunk_states, const OptionalTensor& d_o,
                                const OptionalTensor& d_final_state) {
  const variable_list out = NoSecondDerivative::apply(
      q, k, w, g, b, erase_read, erase_key, initial_state, cu_seqlens, scale, erase_undecayed, read_values,
      chunk, std::string(implementation), chunk_states, d_o, d_final_state);
  return {out[0], out[1], out[2], out[3], out[4], out[5], out[6], out[7]};
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, CompositeExplicitAutograd, m) {
  m.impl("vector_gate", inference);
  m.impl("_vector_gate_forward", forward);
  m.impl("_vector_gate_backward", backward);
}
TORCH_LIBRARY_IMPL(prism, Meta, m) {
  m.impl("_vector_gate_forward", forward_meta);
  m.impl("_vector_gate_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(prism, Autograd, m) {
  m.impl("vector_gate", autograd);
  m.impl("_vector_gate_backward", backward_autograd);
}

VectorGateResult vector_gate(const VectorGateArgs& a) {
  const auto [o, final_state] =
      call_operator<Signature>("prism::vector_gate", a.q, a.k, a.w, a.g, a.b, a.erase_read, a.erase_key,
                               a.initial_state, a.cu_seqlens, a.scale, a.erase_undecayed, a.read_values,
                               a.return_final_state, a.chunk, implementation_name(a.implementation));
  return {o, undefined_unless(a.return_final_state, final_state)};
}

}  // namespace prism
