#pragma once
// What the implementations of vector_gate get: checked arguments with every default filled in.
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace prism {

/// Shapes as in prism/ops/vector_gate.h. `cu_seqlens` is int64; scale and chunk are final.
struct GateCall {
  const at::Tensor &q, &k, &w, &g;
  const std::optional<at::Tensor>&b, &erase_read, &erase_key, &initial_state, &cu_seqlens;
  double scale;
  bool erase_undecayed, read_values;
  int64_t chunk;

  int64_t batch() const { return q.size(0); }
  int64_t tokens() const { return q.size(1); }
  int64_t key_heads() const { return k.size(2); }
  int64_t heads() const { return w.size(2); }
  int64_t key_width() const { return k.size(3); }
  int64_t value_width() const { return w.size(3); }
  int64_t output_width() const { return read_values ? key_width() : value_width(); }
  int64_t sequences() const { return cu_seqlens ? cu_seqlens->size(0) - 1 : batch(); }
  bool erases() const { return b || erase_read || erase_key; }
};

/// o, final_state, chunk_states; those not asked for are empty tensors.
using GateOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
/// dq, dk, dw, dg, db, derase_read, derase_key, dinitial_state; those of absent inputs are empty tensors.
using GateGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                                 at::Tensor, at::Tensor>;

/// Throws Error naming the tensor that does not fit. `token_dims`: 2 for [B,T,...], 1 for vector_gate_step's
/// [B,...].
void check_gate_arguments(const char* op, int64_t token_dims, const GateCall& call);

/// Whether there is a kernel for keys of `key_width` channels of type `type` on `device`.
bool has_gate_kernel(at::ScalarType type, at::Device device, int64_t key_width);
int64_t fused_gate_chunk_length();
GateOutputs vector_gate_fused(const GateCall& call, bool return_final_state, bool save_states);
GateGradients vector_gate_fused_backward(const GateCall& call, const at::Tensor& chunk_states,
                                         const std::optional<at::Tensor>& d_o,
                                         const std::optional<at::Tensor>& d_final_state);
/// One token a row of the batch; `state` is updated in place.
at::Tensor vector_gate_fused_step(const GateCall& call, const at::Tensor& state);
/// The token loop in double; CPU only, no chunk states.
GateOutputs vector_gate_reference(const GateCall& call, bool return_final_state);

GateOutputs vector_gate_composed(const GateCall& call, bool return_final_state, bool save_states);
GateGradients vector_gate_composed_backward(const GateCall& call, const at::Tensor& chunk_states,
                                            const std::optional<at::Tensor>& d_o,
                                            const std::optional<at::Tensor>& d_final_state);

}  // namespace prism
