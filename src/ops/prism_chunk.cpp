#include "prism/ops/prism_chunk.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "chunk_options.h"
#include "dispatch.h"
#include "prism/kernels/prism_chunk_cuda.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using ChunkSignature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                                  const OptionalTensor&, std::optional<double>, bool, int64_t,
                                                  string_view);
using ForwardSignature = ChunkOutputs(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                      const OptionalTensor&, double, int64_t, string_view, bool, bool);
using BackwardSignature = ChunkGradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                         const OptionalTensor&, double, int64_t, string_view, const Tensor&,
                                         const OptionalTensor&, const OptionalTensor&);

constexpr int64_t kComposedChunk = 64;

// Defaults.

/// What a caller's "fused" stands for: "fused" on the CPU, "cuda" on a GPU, or nothing.
std::optional<string_view> fused_kernel(const Tensor& q, const Tensor& k, const Tensor& w, bool erase_read,
                                        bool gradients) {
  if (q.device().is_cpu() && q.scalar_type() != at::kHalf) return "fused";
  if (prism_chunk_has_cuda_kernel(q, k, w, erase_read, gradients)) return "cuda";
  return std::nullopt;
}

/// No longer than the longest sequence, so that short ones need little padding. Traced lengths are unknown
/// and keep the full chunk.
int64_t composed_chunk(const Tensor& q, const OptionalTensor& host_offsets) {
  const std::optional<int64_t> longest = longest_sequence(q, host_offsets);
  if (!longest || *longest >= kComposedChunk) return kComposedChunk;
  return present(host_offsets) ? int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(*longest, 1))))
                               : std::max<int64_t>(*longest, 1);
}

int64_t width_of(const Tensor& tensor, int64_t dim) {
  return tensor.sym_size(dim).guard_int(__FILE__, __LINE__);
}

int64_t chosen_chunk(string_view implementation, const Tensor& q, const Tensor& k, const Tensor& w,
                     const OptionalTensor& offsets) {
  if (implementation == "cuda") return kernels::cuda::kChunkTokens;
  if (implementation == "fused")
    return fused_chunk_length(q.scalar_type(), width_of(q, -1), width_of(w, -1), width_of(k, 2));
  return composed_chunk(q, offsets);
}

struct Resolved {
  double scale;
  int64_t chunk;
  string_view implementation;
  OptionalTensor offsets;  ///< where the implementation reads them
};

/// "cuda", "fused", "composed" or "reference" for what a caller asked.
string_view serving_implementation(const Tensor& q, const Tensor& k, const Tensor& w, bool erase_read,
                                   int64_t chunk, string_view asked, bool gradients) {
  std::optional<string_view> fused = fused_kernel(q, k, w, erase_read, gradients);
  if (fused == "cuda" && chunk != 0 && chunk != kernels::cuda::kChunkTokens) fused.reset();
  const string_view chosen = chosen_implementation(
      "prism_chunk", asked, fused.has_value(), q,
      fmt::format("{} on {}", c10::toString(q.scalar_type()), c10::DeviceTypeName(q.device().type(), true)));
  return chosen == "fused" ? *fused : chosen;
}

Resolved resolve(const Tensor& q, const Tensor& k, const Tensor& w, const OptionalTensor& erase_read,
                 const OptionalTensor& cu_seqlens, std::optional<double> scale, int64_t chunk,
                 string_view implementation, bool gradients) {
  check(chunk >= 0, "prism_chunk: chunk is {}, expected 0 (chosen) or the number of tokens", chunk);
  const string_view chosen =
      serving_implementation(q, k, w, present(erase_read), chunk, implementation, gradients);
  const OptionalTensor offsets = chosen == "cuda" ? or_nothing(cu_seqlens) : offsets_on_host(cu_seqlens);
  return {scale ? *scale : 1.0 / std::sqrt(double(width_of(q, -1))),
          chunk ? chunk : chosen_chunk(chosen, q, k, w, offsets), chosen, offsets};
}

// The passes.

ChunkOutputs empty_outputs(const ChunkCall& call, bool return_final_state, bool save_states) {
  const auto states = call.b.options();
  Tensor final_state = at::empty({0}, states);
  if (return_final_state) {
    final_state =
        call.initial_state
            ? call.initial_state->clone(at::MemoryFormat::Contiguous)
            : at::zeros({call.sequences(), call.heads(), call.key_width(), call.value_width()}, states);
  }
  const int64_t count = save_states && call.cu_seqlens ? call.sequences() : 0;
  return {at::empty({call.batch(), call.tokens(), call.heads(), call.value_width()}, call.q.options()),
          final_state,
          save_states ? at::zeros({count, call.heads(), call.key_width(), call.value_width()}, states)
                      : at::empty({0}, states)};
}

ChunkOutputs forward(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                     const OptionalTensor& erase_read, const OptionalTensor& initial_state,
                     const OptionalTensor& cu_seqlens, double scale, int64_t chunk,
                     string_view implementation, bool return_final_state, bool save_states) {
  check_chunk_arguments("prism_chunk", 2, q, k, w, b, g, erase_read, initial_state, cu_seqlens);
  const ChunkCall call{q, k, w, b, g, erase_read, initial_state, cu_seqlens, scale, chunk};
  if (q.numel() == 0) {
    sequence_offsets(cu_seqlens, q.size(0), q.size(1));
    return empty_outputs(call, return_final_state, save_states);
  }
  if (implementation == "fused") return prism_chunk_fused(call, return_final_state, save_states);
  if (implementation == "cuda") return prism_chunk_cuda(call, return_final_state, save_states);
  if (implementation == "reference") return prism_chunk_reference(call, return_final_state);
  return prism_chunk_composed(call, return_final_state, save_states);
}

ChunkGradients empty_gradients(const ChunkCall& call, const OptionalTensor& d_final_state) {
  const auto zeros_like = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  const auto optional_zeros = [&](const OptionalTensor& x) {
    return x ? zeros_like(*x) : at::empty({0}, call.b.options());
  };
  Tensor dinitial = optional_zeros(call.initial_state);
  if (call.initial_state && d_final_state) dinitial.copy_(*d_final_state);
  return {zeros_like(call.q),
          zeros_like(call.k),
          zeros_like(call.w),
          zeros_like(call.b),
          zeros_like(call.g),
          optional_zeros(call.erase_read),
          dinitial};
}

ChunkGradients backward(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                        const OptionalTensor& erase_read, const OptionalTensor& initial_state,
                        const OptionalTensor& cu_seqlens, double scale, int64_t chunk,
                        string_view implementation, const Tensor& chunk_states, const OptionalTensor& d_o,
                        const OptionalTensor& d_final_state) {
  check_chunk_arguments("prism_chunk", 2, q, k, w, b, g, erase_read, initial_state, cu_seqlens);
  const ChunkCall call{q, k, w, b, g, erase_read, initial_state, cu_seqlens, scale, chunk};
  if (q.numel() == 0) return empty_gradients(call, d_final_state);
  if (implementation == "fused") return prism_chunk_fused_backward(call, chunk_states, d_o, d_final_state);
  if (implementation == "cuda") return prism_chunk_cuda_backward(call, chunk_states, d_o, d_final_state);
  return prism_chunk_composed_backward(call, chunk_states, d_o, d_final_state);
}

// Shapes for tracers.

ChunkOutputs forward_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b, const Tensor& g,
                          const OptionalTensor& erase_read, const OptionalTensor& initial_state,
                          const OptionalTensor& cu_seqlens, double, int64_t chunk, string_view implementation,
                          bool return_final_state, bool save_states) {
  check_chunk_arguments("prism_chunk", 2, q, k, w, b, g, erase_read, initial_state, cu_seqlens);
  std::optional<c10::SymInt> packed;
  if (cu_seqlens) packed = cu_seqlens->sym_size(0) - 1;
  const c10::SymInt count = chunk_state_count(q.sym_size(0), q.sym_size(1), packed, chunk);
  const c10::SymInt heads = w.sym_size(3), K = q.sym_size(3), V = w.sym_size(4);
  const auto states = [&](bool wanted, const c10::SymInt& n) {
    return wanted ? b.new_empty_symint({n, heads, K, V}) : b.new_empty_symint({0});
  };
  const bool opaque = save_states && implementation == "cuda";
  return {
      q.new_empty_symint({q.sym_size(0), q.sym_size(1), heads, V}),
      states(return_final_state, packed ? *packed : q.sym_size(0)),
      opaque ? q.new_empty_symint(cuda_chunk_states_shape(q, w, cu_seqlens)) : states(save_states, count)};
}

ChunkGradients backward_meta(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b,
                             const Tensor& g, const OptionalTensor& erase_read,
                             const OptionalTensor& initial_state, const OptionalTensor&, double, int64_t,
                             string_view, const Tensor&, const OptionalTensor&, const OptionalTensor&) {
  const auto like = [](const Tensor& x) { return x.new_empty_symint(x.sym_sizes()); };
  const auto like_optional = [&](const OptionalTensor& x) { return x ? like(*x) : b.new_empty_symint({0}); };
  return {
      like(q), like(k), like(w), like(b), like(g), like_optional(erase_read), like_optional(initial_state)};
}

// Autograd.

struct PrismChunkFunction : torch::autograd::Function<PrismChunkFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& w,
                               const Tensor& b, const Tensor& g, const OptionalTensor& erase_read,
                               const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                               double scale, int64_t chunk, const std::string& implementation,
                               bool return_final_state, bool save_states) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [o, final_state, chunk_states] = call_operator<ForwardSignature>(
        "prism::_prism_chunk_forward", q, k, w, b, g, erase_read, initial_state, cu_seqlens, scale, chunk,
        implementation, return_final_state, save_states);
    if (save_states)
      context->save_for_backward({q, k, w, b, g, erase_read.value_or(Tensor()),
                                  initial_state.value_or(Tensor()), cu_seqlens.value_or(Tensor()),
                                  chunk_states});
    context->saved_data["scale"] = scale;
    context->saved_data["chunk"] = chunk;
    context->saved_data["implementation"] = implementation;
    context->set_materialize_grads(false);
    if (!return_final_state) context->mark_non_differentiable({final_state});
    return {o, final_state};
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    const std::string& implementation = context->saved_data["implementation"].toStringRef();
    auto [dq, dk, dw, db, dg, derase, dinitial] = call_operator<BackwardSignature>(
        "prism::_prism_chunk_backward", saved[0], saved[1], saved[2], saved[3], saved[4], optional(saved[5]),
        optional(saved[6]), optional(saved[7]), context->saved_data["scale"].toDouble(),
        context->saved_data["chunk"].toInt(), implementation, saved[8], optional(upstream[0]),
        optional(upstream[1]));
    const Tensor none;
    return {dq,
            dk,
            dw,
            db,
            dg,
            saved[5].defined() ? derase : none,
            saved[6].defined() ? dinitial : none,
            none,
            none,
            none,
            none,
            none,
            none};
  }
};

std::tuple<Tensor, Tensor> chunk_autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b,
                                          const Tensor& g, const OptionalTensor& erase_read,
                                          const OptionalTensor& initial_state,
                                          const OptionalTensor& cu_seqlens, std::optional<double> scale,
                                          bool return_final_state, int64_t chunk,
                                          string_view implementation) {
  check_chunk_arguments("prism_chunk", 2, q, k, w, b, g, erase_read, initial_state, cu_seqlens);
  const bool save_states = records_gradients(q, k, w, b, g, erase_read, initial_state);
  const Resolved resolved =
      resolve(q, k, w, erase_read, cu_seqlens, scale, chunk, implementation, save_states);
  if (save_states && resolved.implementation == "reference")
    fail("prism_chunk: the reference implementation has no gradient; use auto, fused or composed");
  const variable_list outputs = PrismChunkFunction::apply(
      q, k, w, b, g, or_nothing(erase_read), or_nothing(initial_state), resolved.offsets, resolved.scale,
      resolved.chunk, std::string(resolved.implementation), return_final_state, save_states);
  return {outputs[0], outputs[1]};
}

std::tuple<Tensor, Tensor> chunk_inference(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b,
                                           const Tensor& g, const OptionalTensor& erase_read,
                                           const OptionalTensor& initial_state,
                                           const OptionalTensor& cu_seqlens, std::optional<double> scale,
                                           bool return_final_state, int64_t chunk,
                                           string_view implementation) {
  check_chunk_arguments("prism_chunk", 2, q, k, w, b, g, erase_read, initial_state, cu_seqlens);
  const Resolved resolved = resolve(q, k, w, erase_read, cu_seqlens, scale, chunk, implementation, false);
  auto [o, final_state, chunk_states] = call_operator<ForwardSignature>(
      "prism::_prism_chunk_forward", q, k, w, b, g, or_nothing(erase_read), or_nothing(initial_state),
      resolved.offsets, resolved.scale, resolved.chunk, resolved.implementation, return_final_state, false);
  return {o, final_state};
}

/// The backward pass is an operator of its own; its derivative is a clear error instead of a silent zero.
struct NoSecondDerivative : torch::autograd::Function<NoSecondDerivative> {
  static variable_list forward(AutogradContext*, const Tensor& q, const Tensor& k, const Tensor& w,
                               const Tensor& b, const Tensor& g, const OptionalTensor& erase_read,
                               const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                               double scale, int64_t chunk, const std::string& implementation,
                               const Tensor& chunk_states, const OptionalTensor& d_o,
                               const OptionalTensor& d_final_state) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dq, dk, dw, db, dg, derase, dinitial] = call_operator<BackwardSignature>(
        "prism::_prism_chunk_backward", q, k, w, b, g, erase_read, initial_state, cu_seqlens, scale, chunk,
        implementation, chunk_states, d_o, d_final_state);
    return {dq, dk, dw, db, dg, derase, dinitial};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    fail("prism_chunk: differentiable once; a second derivative is not available");
  }
};

ChunkGradients backward_autograd(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& b,
                                 const Tensor& g, const OptionalTensor& erase_read,
                                 const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                                 double scale, int64_t chunk, string_view implementation,
                                 const Tensor& chunk_states, const OptionalTensor& d_o,
                                 const OptionalTensor& d_final_state) {
  const variable_list out =
      NoSecondDerivative::apply(q, k, w, b, g, erase_read, initial_state, cu_seqlens, scale, chunk,
                                std::string(implementation), chunk_states, d_o, d_final_state);
  return {out[0], out[1], out[2], out[3], out[4], out[5], out[6]};
}

}  // namespace

TORCH_LIBRARY_IMPL(prism, CompositeExplicitAutograd, m) {
  m.impl("prism_chunk", chunk_inference);
  m.impl("_prism_chunk_forward", forward);
  m.impl("_prism_chunk_backward", backward);
}
TORCH_LIBRARY_IMPL(prism, Meta, m) {
  m.impl("_prism_chunk_forward", forward_meta);
  m.impl("_prism_chunk_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(prism, Autograd, m) {
  m.impl("prism_chunk", chunk_autograd);
  m.impl("_prism_chunk_backward", backward_autograd);
}

PrismChunkResult prism_chunk(const PrismChunkArgs& args) {
  const auto [o, final_state] = call_operator<ChunkSignature>(
      "prism::prism_chunk", args.q, args.k, args.w, args.b, args.g, args.erase_read, args.initial_state,
      args.cu_seqlens, args.scale, args.return_final_state, args.chunk,
      implementation_name(args.implementation));
  return {o, undefined_unless(args.return_final_state, final_state)};
}

OptionalTensor prism_chunk_offsets(const PrismChunkArgs& args, const Packing& packing) {
  if (!packing.is_packed()) return std::nullopt;
  const bool gradients =
      records_gradients(args.q, args.k, args.w, args.b, args.g, args.erase_read, args.initial_state);
  const bool on_device =
      serving_implementation(args.q, args.k, args.w, present(args.erase_read), args.chunk,
                             implementation_name(args.implementation), gradients) == "cuda";
  return packing.cu_seqlens_on(on_device ? args.q.device() : c10::Device(c10::kCPU));
}

}  // namespace prism
