#pragma once
// prism_chunk as the files of its family call it.
#include "golden.h"
#include "prism/ops/prism_chunk.h"

namespace prism::golden {

/// prism_chunk with the file's state, packing and scale.
Tensors recurrence(const Call& call, PrismChunkArgs args);

/// [B,T,H,...] as the only one of L = 1 steps.
inline at::Tensor one_step(const at::Tensor& x) { return x.unsqueeze(2); }

/// A gated write in the type of the activations.
inline at::Tensor gated(const at::Tensor& gate, const at::Tensor& value) {
  return (gate.unsqueeze(-1) * value).to(value.scalar_type());
}

}  // namespace prism::golden
