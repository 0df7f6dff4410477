// prism_chunk through the CPU kernels.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "arguments.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "prism/kernels/prism_chunk.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;

/// A call as the kernels take it; owns the copies of what they cannot read in place.
struct FusedChunkCall {
  explicit FusedChunkCall(const ChunkCall& call)
      : offsets(sequence_offsets(call.cu_seqlens, call.batch(), call.tokens())),
        shape{.dtype = kernel_scalar(call.q.scalar_type()),
              .sequences = {.count = int64_t(offsets.size()) - 1, .offsets = offsets.data()},
              .steps = call.steps(),
              .key_heads = call.key_heads(),
              .heads = call.heads(),
              .key_width = call.key_width(),
              .value_width = call.value_width(),
              .scale = call.scale,
              .chunk = call.chunk} {
    in.q = view_of(call.q, 2, held[0]);
    in.k = view_of(call.k, 3, held[1]);
    in.w = view_of(call.w, 3, held[2]);
    in.b = view_of(call.b.unsqueeze(-1), 2, held[3]);
    in.g = view_of(call.g.unsqueeze(-1), 2, held[4]);
    if (call.erase_read) in.erase_read = view_of(*call.erase_read, 2, held[5]);
    if (call.initial_state) {
      held[6] = call.initial_state->contiguous();
      in.initial_state = held[6].const_data_ptr();
    }
  }
  FusedChunkCall(const FusedChunkCall&) = delete;
  FusedChunkCall& operator=(const FusedChunkCall&) = delete;

  std::vector<int64_t> offsets;
  kernels::PrismChunkShape shape;
  kernels::PrismChunkInputs in;
  Tensor held[7];
};

Tensor empty_states(const ChunkCall& call, int64_t count, at::ScalarType type) {
  return at::empty({count, call.heads(), call.key_width(), call.value_width()}, call.b.options().dtype(type));
}

}  // namespace

int64_t fused_chunk_length(at::ScalarType type, int64_t key_width, int64_t value_width, int64_t steps) {
  kernels::PrismChunkShape shape;
  shape.dtype = kernel_scalar(type);
  shape.key_width = key_width;
  shape.value_width = value_width;
  shape.steps = steps;
  return kernels::prism_chunk_length(shape);
}

ChunkOutputs prism_chunk_fused(const ChunkCall& call, bool return_final_state, bool save_states) {
  const FusedChunkCall kernel(call);
  const at::ScalarType state_type = gate_type(call.q.scalar_type());
  const Tensor o =
      at::empty({call.batch(), call.tokens(), call.heads(), call.value_width()}, call.q.options());
  const Tensor final_state =
      return_final_state ? empty_states(call, call.sequences(), state_type) : nothing(call.b);
  Tensor chunk_states = nothing(call.b);
  if (save_states) {
    const std::optional<c10::SymInt> packed =
        call.cu_seqlens ? std::optional<c10::SymInt>(call.sequences()) : std::nullopt;
    chunk_states = empty_states(
        call, chunk_state_count(call.batch(), call.tokens(), packed, call.chunk).expect_int(), state_type);
  }
  kernels::prism_chunk_forward(kernel.shape, kernel.in, o.mutable_data_ptr(), data_or_null(final_state),
                               data_or_null(chunk_states));
  return {o, final_state, chunk_states};
}

ChunkGradients prism_chunk_fused_backward(const ChunkCall& call, const Tensor& chunk_states,
                                          const std::optional<Tensor>& d_o,
                                          const std::optional<Tensor>& d_final_state) {
  const FusedChunkCall kernel(call);
  const Tensor dq = empty_like_input(call.q), dk = empty_like_input(call.k), dw = empty_like_input(call.w),
               db = empty_like_input(call.b), dg = empty_like_input(call.g),
               derase = call.erase_read ? empty_like_input(*call.erase_read) : nothing(call.b),
               dinitial = call.initial_state ? empty_like_input(*call.initial_state) : nothing(call.b);
  const Tensor dO =
      d_o ? *d_o
          : at::zeros({call.batch(), call.tokens(), call.heads(), call.value_width()}, call.q.options());
  Tensor held_do, dfinal;
  const kernels::View d_o_view = view_of(dO, 2, held_do);
  if (d_final_state) dfinal = d_final_state->contiguous();
  kernels::prism_chunk_backward(kernel.shape, kernel.in, chunk_states.const_data_ptr(), d_o_view,
                                d_final_state ? dfinal.const_data_ptr() : nullptr,
                                {.dq = dq.mutable_data_ptr(),
                                 .dk = dk.mutable_data_ptr(),
                                 .dw = dw.mutable_data_ptr(),
                                 .db = db.mutable_data_ptr(),
                                 .dg = dg.mutable_data_ptr(),
                                 .derase_read = data_or_null(derase),
                                 .dinitial_state = data_or_null(dinitial)});
  return {dq, dk, dw, db, dg, derase, dinitial};
}

ChunkOutputs prism_chunk_reference(const ChunkCall& call, bool return_final_state) {
  check(call.q.device().is_cpu() && call.q.scalar_type() != at::kHalf,
        "prism_chunk: the reference implementation takes fp64, fp32 and bf16 on the CPU, not {} on {}",
        c10::toString(call.q.scalar_type()), call.q.device().str());
  const FusedChunkCall kernel(call);
  const auto doubles = call.q.options().dtype(at::kDouble);
  const Tensor o = at::empty({call.batch(), call.tokens(), call.heads(), call.value_width()}, doubles);
  const Tensor final_state =
      return_final_state ? empty_states(call, call.sequences(), at::kDouble) : at::empty({0}, doubles);
  kernels::prism_chunk_reference(kernel.shape, kernel.in, o.mutable_data_ptr<double>(),
                                 return_final_state ? final_state.mutable_data_ptr<double>() : nullptr);
  return {o.to(call.q.scalar_type()), final_state.to(gate_type(call.q.scalar_type())),
          at::empty({0}, call.b.options())};
}

}  // namespace prism
