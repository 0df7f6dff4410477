#pragma once
// What the implementations of prism_chunk get: checked arguments with every default filled in.
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace prism {

/// Shapes as in prism/ops/prism_chunk.h. `cu_seqlens` is int64; scale and chunk are final.
struct ChunkCall {
  const at::Tensor &q, &k, &w, &b, &g;
  const std::optional<at::Tensor>&erase_read, &initial_state, &cu_seqlens;
  double scale;
  int64_t chunk;

  int64_t batch() const { return q.size(0); }
  int64_t tokens() const { return q.size(1); }
  int64_t key_heads() const { return q.size(2); }
  int64_t key_width() const { return q.size(3); }
  int64_t steps() const { return k.size(2); }
  int64_t heads() const { return w.size(3); }
  int64_t value_width() const { return w.size(4); }
  int64_t sequences() const { return cu_seqlens ? cu_seqlens->size(0) - 1 : batch(); }
};

/// o, final_state, chunk_states; those not asked for are empty tensors.
using ChunkOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
/// dq, dk, dw, db, dg, derase_read, dinitial_state; those of absent inputs are empty tensors.
using ChunkGradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Throws Error naming the tensor that does not fit. `token_dims`: 2 for [B,T,...], 1 for prism_step's
/// [B,...].
void check_chunk_arguments(const char* op, int64_t token_dims, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& w, const at::Tensor& b, const at::Tensor& g,
                           const std::optional<at::Tensor>& erase_read,
                           const std::optional<at::Tensor>& initial_state,
                           const std::optional<at::Tensor>& cu_seqlens);

/// The sequences' starts on the host, [sequences + 1]: from cu_seqlens (checked: from 0, never falling, up to
/// `tokens`) or, without it, `batch` rows of `tokens`.
std::vector<int64_t> sequence_offsets(const std::optional<at::Tensor>& cu_seqlens, int64_t batch,
                                      int64_t tokens);

/// Chunk-start states that are stored: exact for rows. For packed sequences an upper bound that needs sizes
/// alone, so that a tracer can know it.
c10::SymInt chunk_state_count(const c10::SymInt& batch, const c10::SymInt& tokens,
                              const std::optional<c10::SymInt>& packed_sequences, int64_t chunk);

/// The chunk length that the fused kernel takes for these sizes.
int64_t fused_chunk_length(at::ScalarType type, int64_t key_width, int64_t value_width, int64_t steps);
ChunkOutputs prism_chunk_fused(const ChunkCall& call, bool return_final_state, bool save_states);
ChunkGradients prism_chunk_fused_backward(const ChunkCall& call, const at::Tensor& chunk_states,
                                          const std::optional<at::Tensor>& d_o,
                                          const std::optional<at::Tensor>& d_final_state);
/// The token loop in double; CPU only, no chunk states.
ChunkOutputs prism_chunk_reference(const ChunkCall& call, bool return_final_state);

/// Whether the CUDA kernels take this call; with `gradients`, forward and backward.
bool prism_chunk_has_cuda_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& w,
                                 bool erase_read, bool gradients);
/// The chunk-start states that the CUDA kernels keep are an opaque tensor of q's dtype in this shape.
std::vector<c10::SymInt> cuda_chunk_states_shape(const at::Tensor& q, const at::Tensor& w,
                                                 const std::optional<at::Tensor>& cu_seqlens);
ChunkOutputs prism_chunk_cuda(const ChunkCall& call, bool return_final_state, bool save_states);
ChunkGradients prism_chunk_cuda_backward(const ChunkCall& call, const at::Tensor& chunk_states,
                                         const std::optional<at::Tensor>& d_o,
                                         const std::optional<at::Tensor>& d_final_state);

ChunkOutputs prism_chunk_composed(const ChunkCall& call, bool return_final_state, bool save_states);
ChunkGradients prism_chunk_composed_backward(const ChunkCall& call, const at::Tensor& chunk_states,
                                             const std::optional<at::Tensor>& d_o,
                                             const std::optional<at::Tensor>& d_final_state);

}  // namespace prism
