// The refinement loop (eq. 14-16) from ATen operations, in fp32 for narrower types.
#include <ATen/ATen.h>

#include <vector>

#include "dispatch.h"
#include "prism_refine_call.h"

namespace prism {
namespace {

using at::Tensor;

constexpr double kInverseSqrt2Pi = 0.39894228040143267794;
constexpr double kInverseSqrt2 = 0.70710678118654752440;

Tensor phi(const Tensor& x, Nonlinearity kind) { return kind == Nonlinearity::kGelu ? at::gelu(x) : x; }

Tensor phi_derivative(const Tensor& x, Nonlinearity kind) {
  if (kind == Nonlinearity::kIdentity) return at::ones_like(x);
  const Tensor cumulative = (x * kInverseSqrt2).erf_().add_(1).mul_(0.5);
  return cumulative.addcmul_(x, (x * x).mul_(-0.5).exp_(), kInverseSqrt2Pi);
}

/// The loop's tensors by step, each [...,H,V] in the compute type; beta [...,H,1].
struct Loop {
  explicit Loop(const RefineCall& call) : steps(call.steps()) {
    const at::ScalarType type = call.gates();
    Tensor r = call.v.to(type);
    if (call.u) r = r - call.u->to(type);
    for (int64_t l = 0; l < steps; ++l) {
      p.push_back(call.p ? call.p->select(-3, l).to(type) : at::ones_like(r));
      beta.push_back(call.beta ? call.beta->select(-2, l).unsqueeze(-1) : at::ones({1}, r.options()));
      residual.push_back(r);
      x.push_back(p[l] * r);
      delta.push_back(phi(x[l], call.nonlinearity));
      if (call.residual == Residual::kSubtract) r = r - delta[l];
    }
    last_residual = r;
  }
  int64_t steps;
  std::vector<Tensor> p, beta, residual, x, delta;
  Tensor last_residual;
};

}  // namespace

std::vector<int64_t> RefineCall::written_sizes() const {
  std::vector<int64_t> sizes = v.sizes().vec();
  sizes.insert(sizes.end() - 2, steps());
  return sizes;
}

RefineOutputs prism_refine_composed(const RefineCall& call, bool return_delta_and_residual) {
  const Loop loop(call);
  const at::ScalarType type = call.v.scalar_type();
  std::vector<Tensor> w;
  for (int64_t l = 0; l < loop.steps; ++l) w.push_back((loop.beta[l] * loop.delta[l]).to(type));
  if (!return_delta_and_residual) {
    return {at::stack(w, -3), nothing(call.v), nothing(call.v)};
  }
  return {at::stack(w, -3), at::stack(loop.delta, -3).to(type),
          loop.last_residual.to(type, false, /*copy=*/true)};
}

RefineGradients prism_refine_composed_backward(const RefineCall& call, const RefineUpstream& upstream) {
  const Loop loop(call);
  const at::ScalarType type = call.v.scalar_type(), wide = call.gates();
  const bool subtract = call.residual == Residual::kSubtract;
  Tensor dr = upstream.residual ? upstream.residual->to(wide, false, /*copy=*/true)
                                : at::zeros_like(loop.last_residual);
  std::vector<Tensor> dp(loop.steps), dbeta(loop.steps);
  for (int64_t l = loop.steps - 1; l >= 0; --l) {
    Tensor dd = subtract ? dr.neg() : at::zeros_like(dr);
    dbeta[l] = at::zeros(dr.sizes().slice(0, dr.dim() - 1), dr.options());
    if (upstream.w) {
      const Tensor dw = upstream.w->select(-3, l).to(wide);
      dd.addcmul_(loop.beta[l], dw);
      dbeta[l] = (dw * loop.delta[l]).sum(-1);
    }
    if (upstream.delta) dd.add_(upstream.delta->select(-3, l));
    const Tensor dx = dd.mul_(phi_derivative(loop.x[l], call.nonlinearity));
    dp[l] = (dx * loop.residual[l]).to(type);
    dr.addcmul_(loop.p[l], dx);
  }
  const Tensor dv = dr.to(type);
  return {dv, call.u ? dv.neg() : nothing(call.v), call.p ? at::stack(dp, -3) : nothing(call.v),
          call.beta ? at::stack(dbeta, -2) : nothing(call.v)};
}

}  // namespace prism
