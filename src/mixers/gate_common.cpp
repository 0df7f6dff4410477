#include "mixers/gate_common.h"

namespace prism {

at::Tensor recur(const TokenStream& stream, VectorGateArgs args, const std::string& name) {
  if (stream.is_single()) return vector_gate_step(args, *stream.state(name));
  if (stream.packing().is_packed()) args.cu_seqlens = stream.packing().cu_seqlens();
  args.initial_state = stream.state(name);
  args.return_final_state = stream.has_state();
  const VectorGateResult result = vector_gate(args);
  stream.set_state(name, result.final_state);
  return result.o;
}

}  // namespace prism
