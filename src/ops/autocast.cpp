// Under autocast the activations take its narrow type and the gates and states are fp32; fp64 stays fp64.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>
#include <string_view>

#include "dispatch.h"

namespace prism {
namespace {

using at::Tensor;
using at::autocast::cached_cast;
using OptionalTensor = std::optional<Tensor>;
using std::string_view;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

/// The casts of one call; operators called while it lives are those below autocast.
template <c10::DeviceType device>
struct Casts {
  c10::impl::ExcludeDispatchKeyGuard below{at::autocast::get_autocast_dispatch_key_from_device_type(device)};
  at::ScalarType type = at::autocast::get_autocast_dtype(device);

  auto narrow(const auto& x) const { return cached_cast(type, x, device); }
  auto wide(const auto& x) const { return cached_cast(at::kFloat, x, device); }
};

template <c10::DeviceType device>
Two chunk(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
          const OptionalTensor& erase_read, const OptionalTensor& initial_state,
          const OptionalTensor& cu_seqlens, std::optional<double> scale, bool return_final_state,
          int64_t chunk_length, string_view implementation) {
  const Casts<device> to;
  return call_operator<Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                           std::optional<double>, bool, int64_t, string_view)>(
      "prism::prism_chunk", to.narrow(q), to.narrow(k), to.narrow(w), to.wide(b), to.wide(g),
      to.narrow(erase_read), to.wide(initial_state), cu_seqlens, scale, return_final_state, chunk_length,
      implementation);
}

template <c10::DeviceType device>
Three refine(const Tensor& v, const OptionalTensor& u, const OptionalTensor& p, const OptionalTensor& beta,
             string_view nonlinearity, string_view residual, bool return_delta_and_residual,
             string_view implementation) {
  const Casts<device> to;
  return call_operator<Three(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor&, string_view, string_view, bool, string_view)>(
      "prism::prism_refine", to.narrow(v), to.narrow(u), to.narrow(p), to.wide(beta), nonlinearity, residual,
      return_delta_and_residual, implementation);
}

template <c10::DeviceType device>
Two vector_gates(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g, const OptionalTensor& b,
                 const OptionalTensor& erase_read, const OptionalTensor& erase_key,
                 const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                 std::optional<double> scale, bool erase_undecayed, bool read_values, bool return_final_state,
                 int64_t chunk_length, string_view implementation) {
  const Casts<device> to;
  return call_operator<Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                           const OptionalTensor&, std::optional<double>, bool, bool, bool, int64_t,
                           string_view)>("prism::vector_gate", to.narrow(q), to.narrow(k), to.narrow(w),
                                         to.wide(g), to.wide(b), to.narrow(erase_read), to.narrow(erase_key),
                                         to.wide(initial_state), cu_seqlens, scale, erase_undecayed,
                                         read_values, return_final_state, chunk_length, implementation);
}

/// The state keeps its type: it is written in place.
template <c10::DeviceType device>
Tensor chunk_step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                  const Tensor& state, const OptionalTensor& erase_read, std::optional<double> scale) {
  const Casts<device> to;
  return call_operator<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const OptionalTensor&, std::optional<double>)>(
      "prism::prism_step", to.narrow(q), to.narrow(k), to.narrow(w), to.wide(b), to.wide(g), state,
      to.narrow(erase_read), scale);
}

template <c10::DeviceType device>
Tensor gate_step(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g, const Tensor& state,
                 const OptionalTensor& b, const OptionalTensor& erase_read, const OptionalTensor& erase_key,
                 std::optional<double> scale, bool erase_undecayed, bool read_values) {
  const Casts<device> to;
  return call_operator<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                              std::optional<double>, bool, bool)>(
      "prism::vector_gate_step", to.narrow(q), to.narrow(k), to.narrow(w), to.wide(g), state, to.wide(b),
      to.narrow(erase_read), to.narrow(erase_key), scale, erase_undecayed, read_values);
}

/// Backward passes, which may be called where autocast is on: their operands have their types already.
void below_autocast(const c10::OperatorHandle& backward, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  backward.callBoxed(stack);
}

void register_backward(torch::Library& m) {
  for (const char* name : {"_prism_chunk_backward", "_prism_refine_backward", "_vector_gate_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&below_autocast>());
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, AutocastCPU, m) {
  register_backward(m);
  m.impl("prism_chunk", chunk<at::kCPU>);
  m.impl("prism_step", chunk_step<at::kCPU>);
  m.impl("prism_refine", refine<at::kCPU>);
  m.impl("vector_gate", vector_gates<at::kCPU>);
  m.impl("vector_gate_step", gate_step<at::kCPU>);
}
TORCH_LIBRARY_IMPL(prism, AutocastCUDA, m) {
  register_backward(m);
  m.impl("prism_chunk", chunk<at::kCUDA>);
  m.impl("prism_step", chunk_step<at::kCUDA>);
  m.impl("prism_refine", refine<at::kCUDA>);
  m.impl("vector_gate", vector_gates<at::kCUDA>);
  m.impl("vector_gate_step", gate_step<at::kCUDA>);
}

}  // namespace prism
