// DeltaNet, arXiv 2406.06484; layer as in flash-linear-attention's layers/delta_net.py.
#include "prism/mixers/delta_net.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "prism/ops/norm.h"

namespace prism {

DeltaNet::DeltaNet(const Config& config, int64_t width)
    : MatrixMixer(config, width, kName, config.heads), largest_step_(config.negative_eigenvalues ? 2 : 1) {
  register_output(config.output_norm, config.output_gate);
}

at::Tensor DeltaNet::read(const at::Tensor& projected, const TokenStream& stream) const {
  const auto [q, k, v, gates] = split(projected, stream);
  at::Tensor b = at::sigmoid(gates);
  if (largest_step_ != 1) b = b * largest_step_;
  return stream.recur({.q = l2_norm(q),
                       .k = l2_norm(k).unsqueeze(-3),
                       .w = delta::gated_write(b, v),
                       .b = b,
                       .g = at::zeros_like(b).detach()});
}

}  // namespace prism
