#pragma once
// What the composed forms of vector_gate share: the call's tensors by chunk, and the pass over the states.
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "chunk_layout.h"
#include "vector_gate_call.h"

namespace prism {

/// Shapes: N = Z H, chunks of all value heads; C tokens a chunk.
class GateChunks {
 public:
  using Range = ChunkLayout::Range;
  explicit GateChunks(const GateCall& call);

  /// [B,T,Hk,W] or [B,T,Hv,W] -> [N,C,W] in the type of states; a key head is repeated for its value heads.
  at::Tensor of_key_heads(const at::Tensor& x) const;
  at::Tensor of_value_heads(const at::Tensor& x) const;
  /// The log gates [N,C,K], no lower than where exp is zero in double.
  at::Tensor gates() const;
  /// The gradient of o [N,C,W]; zeros where there is none.
  at::Tensor upstream(const std::optional<at::Tensor>& d_o) const;

  /// The reverse: [N,C,W] -> [B,T,Hv,W], or summed over the value heads of each key head -> [B,T,Hk,W].
  at::Tensor value_heads_back(const at::Tensor& x, at::ScalarType type) const;
  at::Tensor key_heads_back(const at::Tensor& x, at::ScalarType type) const;

  /// States forward in time: `advance` takes those before the chunks [begin, begin + count) of N and gives
  /// those after them, [count,K,V]. Returns the buffer of ChunkLayout.
  using Advance = std::function<at::Tensor(const at::Tensor& states, Range chunks)>;
  at::Tensor run_states(const Advance& advance) const;
  /// Their gradients backward in time, from those of the final states.
  at::Tensor run_gradients(const std::optional<at::Tensor>& d_final_state, const Advance& go_back) const;

  /// The states at the chunks' starts as the forward saves them, and those of them that are chunks, [N,K,V].
  at::Tensor starts(const at::Tensor& buffer) const;
  at::Tensor matrices(const at::Tensor& chunk_states) const;
  at::Tensor after_chunks(const at::Tensor& buffer) const;
  at::Tensor finals(const at::Tensor& buffer) const { return layout_.finals(buffer); }
  at::Tensor initial_gradient(const at::Tensor& buffer) const;

 private:
  at::Tensor empty_buffer() const;

  const GateCall& call_;
  ChunkLayout layout_;
  at::ScalarType type_;
  int64_t H_, J_, C_, K_, V_;
};

GateOutputs vector_gate_values_composed(const GateCall& call, bool return_final_state, bool save_states);
GateGradients vector_gate_values_composed_backward(const GateCall& call, const at::Tensor& chunk_states,
                                                   const std::optional<at::Tensor>& d_o,
                                                   const std::optional<at::Tensor>& d_final_state);

}  // namespace prism
