#include "mixers/preconditioned_key.h"

#include "prism/ops/precondition.h"

namespace prism {

at::Tensor preconditioned_key(const TokenStream& stream, const at::Tensor& k, const at::Tensor& beta,
                              const at::Tensor& g, const at::Tensor& log_scale, double squash) {
  const auto row = [&](const at::Tensor& x) { return stream.is_single() ? x.unsqueeze(1) : x; };
  const PreconditionResult result =
      precondition(row(k), row(beta), row(g), log_scale, stream.packing(), stream.state("A"), squash);
  stream.set_state("A", result.final_a);
  return stream.is_single() ? result.write_key.squeeze(1) : result.write_key;
}

}  // namespace prism
