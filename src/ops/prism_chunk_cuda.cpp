// prism_chunk through the CUDA kernels of libprism_cuda.so.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "arguments.h"
#include "dispatch.h"
#include "kernel_views.h"
#include "prism/ops/cuda_kernels.h"
#include "prism_chunk_call.h"

namespace prism {
namespace {

using at::Tensor;
using kernels::cuda::kChunkTokens;
using kernels::cuda::PrismChunkCudaShape;

/// A call as the kernels take it; owns the copies of what they cannot read in place. cu_seqlens stays on the
/// device: nothing here waits for it.
struct CudaChunkCall {
  explicit CudaChunkCall(const ChunkCall& call)
      : shape{.dtype = kernel_scalar(call.q.scalar_type()),
              .tokens = call.batch() * call.tokens(),
              .sequences = call.sequences(),
              .steps = call.steps(),
              .key_heads = call.key_heads(),
              .heads = call.heads(),
              .key_width = call.key_width(),
              .value_width = call.value_width(),
              .scale = call.scale} {
    in.q = aligned_view_of(call.q, 2, held[0]);
    in.k = aligned_view_of(call.k, 3, held[1]);
    in.w = aligned_view_of(call.w, 3, held[2]);
    in.b = view_of(call.b.unsqueeze(-1), 2, held[3]);
    in.g = view_of(call.g.unsqueeze(-1), 2, held[4]);
    if (call.initial_state) {
      held[5] = call.initial_state->contiguous();
      in.initial_state = held[5].const_data_ptr();
    }
    if (call.cu_seqlens) {
      held[6] = call.cu_seqlens->to(call.q.device(), at::kLong).contiguous();
      shape.offsets = held[6].const_data_ptr<int64_t>();
    }
  }
  CudaChunkCall(const CudaChunkCall&) = delete;
  CudaChunkCall& operator=(const CudaChunkCall&) = delete;

  PrismChunkCudaShape shape;
  kernels::PrismChunkInputs in;
  Tensor held[7];
};

Tensor workspace(const ChunkCall& call, int64_t bytes) {
  return at::empty({bytes}, call.q.options().dtype(at::kByte));
}

}  // namespace

bool prism_chunk_has_cuda_kernel(const Tensor& q, const Tensor& k, const Tensor& w, bool erase_read,
                                 bool gradients) {
  const CudaKernels* table = cuda_kernels();
  if (!q.device().is_cuda() || erase_read || !table || !table->chunk_forward) return false;
  if (gradients && !table->chunk_backward) return false;
  if (q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf) return false;
  const auto size = [](const Tensor& x, int64_t dim) { return x.sym_size(dim).maybe_as_int().value_or(0); };
  const std::optional<int64_t> rows = q.sym_size(0).maybe_as_int(), tokens = q.sym_size(1).maybe_as_int();
  const c10::OptionalDeviceGuard guard(q.device());
  return table->chunk_supports({.dtype = kernel_scalar(q.scalar_type()),
                                .tokens = rows && tokens ? *rows * *tokens : 0,
                                .steps = size(k, 2),
                                .key_heads = size(q, 2),
                                .heads = size(w, 3),
                                .key_width = size(q, 3),
                                .value_width = size(w, 4)});
}

std::vector<c10::SymInt> cuda_chunk_states_shape(const Tensor& q, const Tensor& w,
                                                 const std::optional<Tensor>& cu_seqlens) {
  std::optional<c10::SymInt> packed;
  if (cu_seqlens) packed = cu_seqlens->sym_size(0) - 1;
  const auto padded = [](int64_t width) { return std::max<int64_t>(width, 64); };
  const int64_t K = q.sym_size(3).expect_int(), V = w.sym_size(4).expect_int();
  const c10::SymInt chunks = chunk_state_count(q.sym_size(0), q.sym_size(1), packed, kChunkTokens),
                    heads = w.sym_size(3), tokens = q.sym_size(0) * q.sym_size(1);
  return {kernels::cuda::kept_states(chunks, tokens, heads.expect_int(), V), heads, padded(V), padded(K)};
}

ChunkOutputs prism_chunk_cuda(const ChunkCall& call, bool return_final_state, bool save_states) {
  const c10::OptionalDeviceGuard guard(call.q.device());
  const CudaChunkCall kernel(call);
  const Tensor o =
      at::empty({call.batch(), call.tokens(), call.heads(), call.value_width()}, call.q.options());
  Tensor final_state = nothing(call.b), chunk_states = nothing(call.q);
  if (return_final_state)
    final_state =
        at::empty({call.sequences(), call.heads(), call.key_width(), call.value_width()}, call.b.options());
  if (save_states)
    chunk_states =
        at::empty_symint(cuda_chunk_states_shape(call.q, call.w, call.cu_seqlens), call.q.options());
  const Tensor memory = workspace(call, cuda_kernels()->chunk_forward_workspace(kernel.shape));
  check_launch("prism_chunk",
               cuda_kernels()->chunk_forward(kernel.shape, kernel.in, o.mutable_data_ptr(),
                                             data_or_null(final_state), data_or_null(chunk_states),
                                             memory.mutable_data_ptr(), cuda_kernels()->current_stream()));
  return {o, final_state, chunk_states};
}

ChunkGradients prism_chunk_cuda_backward(const ChunkCall& call, const Tensor& chunk_states,
                                         const std::optional<Tensor>& d_o,
                                         const std::optional<Tensor>& d_final_state) {
  const c10::OptionalDeviceGuard guard(call.q.device());
  const CudaChunkCall kernel(call);
  const Tensor dq = empty_like_input(call.q), dk = empty_like_input(call.k), dw = empty_like_input(call.w),
               db = empty_like_input(call.b), dg = empty_like_input(call.g),
               dinitial = call.initial_state ? empty_like_input(*call.initial_state) : nothing(call.b);
  const Tensor dO =
      d_o ? *d_o
          : at::zeros({call.batch(), call.tokens(), call.heads(), call.value_width()}, call.q.options());
  Tensor held_do, dfinal;
  const kernels::View d_o_view = aligned_view_of(dO, 2, held_do);
  if (d_final_state) dfinal = d_final_state->contiguous();
  const Tensor memory = workspace(call, cuda_kernels()->chunk_backward_workspace(kernel.shape));
  check_launch("prism_chunk",
               cuda_kernels()->chunk_backward(kernel.shape, kernel.in, chunk_states.const_data_ptr(),
                                              d_o_view, d_final_state ? dfinal.const_data_ptr() : nullptr,
                                              {.dq = dq.mutable_data_ptr(),
                                               .dk = dk.mutable_data_ptr(),
                                               .dw = dw.mutable_data_ptr(),
                                               .db = db.mutable_data_ptr(),
                                               .dg = dg.mutable_data_ptr(),
                                               .dinitial_state = data_or_null(dinitial)},
                                              memory.mutable_data_ptr(), cuda_kernels()->current_stream()));
  return {dq, dk, dw, db, dg, nothing(call.b), dinitial};
}

}  // namespace prism
