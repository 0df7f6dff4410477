// Exact Flow Linear Attention, arXiv 2512.12602. The map to the step size b is not certain: sigmoid, as in
// DeltaNet.
#include "prism/mixers/efla.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "prism/ops/norm.h"
#include "prism/ops/step_size.h"

namespace prism {

Efla::Efla(const Config& config, int64_t width) : MatrixMixer(config, width, kName, config.heads) {
  register_output(config.output_norm, config.output_gate);
}

at::Tensor Efla::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  const at::Tensor b = exact_step_size(at::sigmoid(gates), k);
  return stream.recur({.q = l2_norm(q),
                       .k = k.unsqueeze(-3),
                       .w = delta::gated_write(b, v),
                       .b = b,
                       .g = at::zeros_like(b).detach()});
}

}  // namespace prism
