#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "arguments.h"
#include "prism/ops/prism_refine.h"

namespace prism {

/// Checked arguments of prism_refine.
struct RefineCall {
  const at::Tensor& v;
  const std::optional<at::Tensor>&u, &p, &beta;
  Nonlinearity nonlinearity;
  Residual residual;

  int64_t steps() const { return p ? p->size(-3) : beta->size(-2); }
  int64_t heads() const { return v.size(-2); }
  int64_t width() const { return v.size(-1); }
  at::ScalarType gates() const { return gate_type(v.scalar_type()); }
  /// Leading dimensions as one.
  int64_t tokens() const { return v.numel() / (heads() * width()); }
  /// [..., L, H, V], and without V.
  std::vector<int64_t> written_sizes() const;
};

/// w, delta, residual; the last two are empty unless asked for.
using RefineOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
/// dv, du, dp, dbeta; those of absent inputs are empty.
using RefineGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

struct RefineUpstream {
  const std::optional<at::Tensor>&w, &delta, &residual;
};

RefineOutputs prism_refine_composed(const RefineCall& call, bool return_delta_and_residual);
RefineGradients prism_refine_composed_backward(const RefineCall& call, const RefineUpstream& upstream);
RefineOutputs prism_refine_fused(const RefineCall& call, bool return_delta_and_residual);
RefineGradients prism_refine_fused_backward(const RefineCall& call, const RefineUpstream& upstream);
/// Whether a fused kernel runs this call: CPU, or CUDA with its kernels loaded.
bool has_fused_refine(const at::Tensor& v, int64_t steps);

}  // namespace prism
