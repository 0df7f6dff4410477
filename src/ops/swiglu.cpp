#include "prism/ops/swiglu.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernel_views.h"
#include "prism/core/error.h"
#include "prism/ops/cuda_kernels.h"

namespace prism {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool has_swiglu_kernel(const Tensor& x) {
  return x.is_cuda() && cuda_kernels() && cuda_kernels()->swiglu_forward && is_kernel_type(x.scalar_type());
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static kernels::cuda::SwigluShape shape(const Tensor& x) {
    const int64_t width = x.size(-1) / 2;
    return {kernel_scalar(x.scalar_type()), width ? x.numel() / (2 * width) : 0, width};
  }
  static Tensor forward(AutogradContext* context, const Tensor& given) {
    const Tensor x = given.contiguous();
    context->save_for_backward({x});
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() /= 2;
    Tensor y = at::empty(sizes, x.options());
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    check_launch("swiglu", table.swiglu_forward(shape(x), x.const_data_ptr(), y.mutable_data_ptr(),
                                                table.current_stream()));
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor x = context->get_saved_variables()[0], dy = grads[0].contiguous();
    Tensor dx = empty_like_input(x);
    const c10::DeviceGuard device(x.device());
    const CudaKernels& table = *cuda_kernels();
    check_launch("swiglu", table.swiglu_backward(shape(x), x.const_data_ptr(), dy.const_data_ptr(),
                                                 dx.mutable_data_ptr(), table.current_stream()));
    return {dx};
  }
};

}  // namespace

Tensor swiglu(const Tensor& x) {
  check(x.dim() >= 1 && x.size(-1) % 2 == 0, "swiglu: x has {} channels, expected an even number",
        x.dim() ? x.size(-1) : 0);
  if (has_swiglu_kernel(x)) return Swiglu::apply(x);
  const auto parts = x.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

}  // namespace prism
