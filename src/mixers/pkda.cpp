// Preconditioned Kimi Delta Attention, arXiv 2604.21100; layer as in flash-linear-attention's
// layers/precond_kda.py.
#include "prism/mixers/pkda.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "mixers/delta_common.h"
#include "mixers/gate_common.h"
#include "mixers/parameters.h"
#include "mixers/preconditioned_key.h"

namespace prism {
namespace {

int64_t curvature_columns(const PkdaConfig& c) { return 2 * (c.key_heads ? c.key_heads : c.heads); }

}  // namespace

Pkda::Pkda(const Config& config, int64_t width)
    : Kda(config, width, kName, curvature_columns(config)), squash_(config.squash) {
  curvature_A_log_ = register_parameter("curvature_A_log", initial::mamba_A_log(key_heads_));
  curvature_dt_bias_ = register_parameter("curvature_dt_bias", initial::mamba_dt_bias(key_heads_));
  log_scale_ = register_parameter("log_scale", kCurvatureLogScale * initial::ones({key_heads_}));
}

at::Tensor Pkda::read(const at::Tensor& projected, const TokenStream& stream) const {
  const Token t = token(projected, stream);
  const auto curvature = t.more.split_with_sizes({key_heads_, key_heads_}, -1);
  const at::Tensor g = delta::mamba_log_decay(curvature[1], curvature_A_log_, curvature_dt_bias_);
  const at::Tensor key = preconditioned_key(stream, t.k, at::sigmoid(curvature[0]), g, log_scale_, squash_);
  return recur(stream, {.q = t.q, .k = key, .w = t.w, .g = t.g, .b = t.b, .erase_read = t.k});
}

std::vector<StateTensor> Pkda::state_tensors() const {
  auto tensors = MatrixMixer::state_tensors();
  tensors.push_back({"A", {key_heads_, key_width_}});
  return tensors;
}

}  // namespace prism
