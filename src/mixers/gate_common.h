#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "prism/mixers/recurrent_mixer.h"
#include "prism/ops/vector_gate.h"

namespace prism {

/// vector_gate, or vector_gate_step for single tokens: leading dimensions of `args` as in the stream;
/// packing, states and the wish for one are filled in. Continues and replaces the stream's state `name`.
at::Tensor recur(const TokenStream& stream, VectorGateArgs args, const std::string& name = "S");

}  // namespace prism
