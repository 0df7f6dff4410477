// vector_gate through the CPU kernels.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "chunk_options.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "prism/kernels/vector_gate.h"
#include "prism_chunk_call.h"
#include "vector_gate_call.h"

namespace prism {
namespace {

using at::Tensor;

/// A call as the kernels take it; owns the copies of what they cannot read in place. Also of
/// vector_gate_step: one token a row, without a token dimension.
struct GateKernelCall {
  explicit GateKernelCall(const GateCall& call)
      : offsets(call.q.dim() == 4
                    ? sequence_starts("vector_gate", call.cu_seqlens, call.batch(), call.tokens())
                    : sequence_starts("vector_gate_step", call.cu_seqlens, call.batch(), 1)),
        shape{.dtype = kernel_scalar(call.q.scalar_type()),
              .sequences = {.count = int64_t(offsets.size()) - 1, .offsets = offsets.data()},
              .key_heads = call.k.size(-2),
              .heads = call.w.size(-2),
              .key_width = call.k.size(-1),
              .value_width = call.w.size(-1),
              .scale = call.scale,
              .chunk = call.chunk,
              .erase_undecayed = call.erase_undecayed,
              .read_values = call.read_values} {
    in.q = view_of(call.q, 2, held[0]);
    in.k = view_of(call.k, 2, held[1]);
    in.w = view_of(call.w, 2, held[2]);
    in.g = view_of(call.g, 2, held[3]);
    if (call.b) in.b = view_of(call.b->unsqueeze(-1), 2, held[4]);
    if (call.erase_read) in.erase_read = view_of(*call.erase_read, 2, held[5]);
    if (call.erase_key) in.erase_key = view_of(*call.erase_key, 2, held[6]);
    if (call.initial_state) {
      held[7] = call.initial_state->contiguous();
      in.initial_state = held[7].const_data_ptr();
    }
  }
  GateKernelCall(const GateKernelCall&) = delete;
  GateKernelCall& operator=(const GateKernelCall&) = delete;

  std::vector<int64_t> offsets;
  kernels::VectorGateShape shape;
  kernels::VectorGateInputs in;
  Tensor held[8];
};

Tensor empty_states(const GateCall& call, int64_t count, at::ScalarType type) {
  return at::empty({count, call.heads(), call.key_width(), call.value_width()}, call.g.options().dtype(type));
}

Tensor empty_if_given(const std::optional<Tensor>& x, const Tensor& like) {
  return x ? empty_like_input(*x) : nothing(like);
}

Tensor empty_output(const GateCall& call, at::ScalarType type) {
  return at::empty({call.batch(), call.tokens(), call.heads(), call.output_width()},
                   call.q.options().dtype(type));
}

}  // namespace

bool has_gate_kernel(at::ScalarType type, at::Device device, int64_t key_width) {
  return device.is_cpu() && type != at::kHalf && key_width <= kernels::kVectorGateMaxKeyWidth;
}

int64_t fused_gate_chunk_length() { return kernels::vector_gate_chunk_length({}); }

GateOutputs vector_gate_fused(const GateCall& call, bool return_final_state, bool save_states) {
  const GateKernelCall kernel(call);
  const at::ScalarType state_type = gate_type(call.q.scalar_type());
  const Tensor o = empty_output(call, call.q.scalar_type());
  const Tensor final_state =
      return_final_state ? empty_states(call, call.sequences(), state_type) : nothing(call.g);
  Tensor chunk_states = nothing(call.g);
  if (save_states) {
    const std::optional<c10::SymInt> packed =
        call.cu_seqlens ? std::optional<c10::SymInt>(call.sequences()) : std::nullopt;
    chunk_states = empty_states(
        call, chunk_state_count(call.batch(), call.tokens(), packed, call.chunk).expect_int(), state_type);
  }
  kernels::vector_gate_forward(kernel.shape, kernel.in, o.mutable_data_ptr(), data_or_null(final_state),
                               data_or_null(chunk_states));
  return {o, final_state, chunk_states};
}

GateGradients vector_gate_fused_backward(const GateCall& call, const Tensor& chunk_states,
                                         const std::optional<Tensor>& d_o,
                                         const std::optional<Tensor>& d_final_state) {
  const GateKernelCall kernel(call);
  const Tensor dq = empty_like_input(call.q), dk = empty_like_input(call.k), dw = empty_like_input(call.w),
               dg = empty_like_input(call.g), db = empty_if_given(call.b, call.g),
               dread = empty_if_given(call.erase_read, call.g),
               derase = empty_if_given(call.erase_key, call.g),
               dinitial = empty_if_given(call.initial_state, call.g);
  const Tensor dO =
      d_o ? *d_o
          : at::zeros({call.batch(), call.tokens(), call.heads(), call.output_width()}, call.q.options());
  Tensor held_do, dfinal;
  const kernels::View d_o_view = view_of(dO, 2, held_do);
  if (d_final_state) dfinal = d_final_state->contiguous();
  kernels::vector_gate_backward(kernel.shape, kernel.in, chunk_states.const_data_ptr(), d_o_view,
                                d_final_state ? dfinal.const_data_ptr() : nullptr,
                                {.dq = dq.mutable_data_ptr(),
                                 .dk = dk.mutable_data_ptr(),
                                 .dw = dw.mutable_data_ptr(),
                                 .dg = dg.mutable_data_ptr(),
                                 .db = data_or_null(db),
                                 .derase_read = data_or_null(dread),
                                 .derase_key = data_or_null(derase),
                                 .dinitial_state = data_or_null(dinitial)});
  return {dq, dk, dw, dg, db, dread, derase, dinitial};
}

Tensor vector_gate_fused_step(const GateCall& call, const Tensor& state) {
  const GateKernelCall kernel(call);  // holds the state itself where it is contiguous
  Tensor o = at::empty({call.q.size(0), call.w.size(1), kernel.shape.output_width()}, call.q.options());
  const Tensor& next = kernel.held[7];
  kernels::vector_gate_forward(kernel.shape, kernel.in, o.mutable_data_ptr(), next.mutable_data_ptr(),
                               nullptr);
  if (!state.is_contiguous()) state.copy_(next);
  return o;
}

GateOutputs vector_gate_reference(const GateCall& call, bool return_final_state) {
  check(call.q.device().is_cpu() && call.q.scalar_type() != at::kHalf,
        "vector_gate: the reference implementation takes fp64, fp32 and bf16 on the CPU, not {} on {}",
        c10::toString(call.q.scalar_type()), call.q.device().str());
  const GateKernelCall kernel(call);
  const Tensor o = empty_output(call, at::kDouble);
  const Tensor final_state =
      return_final_state ? empty_states(call, call.sequences(), at::kDouble) : nothing(o);
  kernels::vector_gate_reference(kernel.shape, kernel.in, o.mutable_data_ptr<double>(),
                                 return_final_state ? final_state.mutable_data_ptr<double>() : nullptr);
  return {o.to(call.q.scalar_type()), final_state.to(gate_type(call.q.scalar_type())), nothing(call.g)};
}

}  // namespace prism
