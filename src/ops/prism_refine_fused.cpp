// prism_refine through the CPU and CUDA kernels.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "kernel_views.h"
#include "prism/kernels/prism_refine.h"
#include "prism/ops/cuda_kernels.h"
#include "prism_refine_call.h"

namespace prism {
namespace {

using at::Tensor;

kernels::PrismRefineShape shape_of(const RefineCall& call) {
  return {.dtype = kernel_scalar(call.v.scalar_type()),
          .tokens = call.tokens(),
          .steps = call.steps(),
          .heads = call.heads(),
          .width = call.width(),
          .nonlinearity = call.nonlinearity,
          .residual = call.residual};
}

struct KernelInputs {
  explicit KernelInputs(const RefineCall& call) {
    in.v = view_of(call.v, 2, held[0]);
    if (call.u) in.u = view_of(*call.u, 2, held[1]);
    if (call.p) in.p = view_of(*call.p, 3, held[2]);
    if (call.beta) in.beta = view_of(call.beta->unsqueeze(-1), 3, held[3]);
  }
  KernelInputs(const KernelInputs&) = delete;
  KernelInputs& operator=(const KernelInputs&) = delete;

  kernels::PrismRefineInputs in;
  Tensor held[4];
};

}  // namespace

bool has_fused_refine(const Tensor& v, int64_t steps) {
  if (v.device().is_cpu()) return v.scalar_type() != at::kHalf;
  return v.device().is_cuda() && cuda_kernels() && cuda_kernels()->refine_forward &&
         steps <= kernels::cuda::kMaxRefineSteps;
}

RefineOutputs prism_refine_fused(const RefineCall& call, bool return_delta_and_residual) {
  const c10::OptionalDeviceGuard guard(call.v.device());
  const KernelInputs inputs(call);
  const Tensor w = at::empty(call.written_sizes(), call.v.options());
  Tensor delta = at::empty({0}, call.v.options()), residual = at::empty({0}, call.v.options());
  if (return_delta_and_residual) {
    delta = at::empty(call.written_sizes(), call.v.options());
    residual = at::empty(call.v.sizes(), call.v.options());
  }
  if (call.v.device().is_cpu()) {
    kernels::prism_refine_forward(shape_of(call), inputs.in, data_or_null(w), data_or_null(delta),
                                  data_or_null(residual));
  } else {
    check_launch("prism_refine", cuda_kernels()->refine_forward(shape_of(call), inputs.in, data_or_null(w),
                                                                data_or_null(delta), data_or_null(residual),
                                                                cuda_kernels()->current_stream()));
  }
  return {w, delta, residual};
}

RefineGradients prism_refine_fused_backward(const RefineCall& call, const RefineUpstream& upstream) {
  const c10::OptionalDeviceGuard guard(call.v.device());
  const KernelInputs inputs(call);
  const auto gradient_of = [&](const std::optional<Tensor>& x) {
    return x ? at::empty(x->sizes(), x->options()) : at::empty({0}, call.v.options());
  };
  Tensor dv = at::empty(call.v.sizes(), call.v.options()), du = gradient_of(call.u), dp = gradient_of(call.p),
         dbeta = gradient_of(call.beta);
  Tensor held[3];
  const auto view = [&](const std::optional<Tensor>& x, int64_t trailing, Tensor& holder) {
    return x ? view_of(*x, trailing, holder) : kernels::View{};
  };
  const kernels::View dw = view(upstream.w, 3, held[0]), ddelta = view(upstream.delta, 3, held[1]),
                      dresidual = view(upstream.residual, 2, held[2]);
  const kernels::PrismRefineGradients out{
      .dv = data_or_null(dv), .du = data_or_null(du), .dp = data_or_null(dp), .dbeta = data_or_null(dbeta)};
  if (call.v.device().is_cpu()) {
    kernels::prism_refine_backward(shape_of(call), inputs.in, dw, ddelta, dresidual, out);
  } else {
    check_launch("prism_refine",
                 cuda_kernels()->refine_backward(shape_of(call), inputs.in, dw, ddelta, dresidual, out,
                                                 cuda_kernels()->current_stream()));
  }
  return {dv, du, dp, dbeta};
}

}  // namespace prism
