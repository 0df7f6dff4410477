#include "kernels/rms_norm/cuda/norm.h"
#include "prism/kernels/rms_norm_cuda.h"

namespace prism::kernels::cuda {
namespace {

norm::Normalization call_of(const RmsNormShape& shape, Scalar result, const RmsNormInputs& in) {
  return {.input = shape.dtype,
          .result = result,
          .tokens = shape.tokens,
          .heads = shape.heads,
          .width = shape.width,
          .scale = 1.0 / static_cast<double>(shape.width),
          .eps = shape.eps,
          .in = in};
}

}  // namespace

const char* rms_norm_forward(const RmsNormShape& shape, Scalar result, const RmsNormInputs& in, void* y,
                             CUstream_st* stream) {
  return norm::forward(call_of(shape, result, in), y, stream);
}

int64_t rms_norm_backward_workspace(const RmsNormShape& shape) {
  return norm::backward_workspace(call_of(shape, shape.dtype, {}));
}

const char* rms_norm_backward(const RmsNormShape& shape, Scalar result, const RmsNormInputs& in,
                              const View& dy, const RmsNormGradients& out, void* workspace,
                              CUstream_st* stream) {
  return norm::backward(call_of(shape, result, in), dy, out, workspace, stream);
}

}  // namespace prism::kernels::cuda
