#pragma once
// What rms_norm and l2norm have in common on the GPU: y = x (scale sum x^2 + eps)^-1/2 [* weight] [*
// SiLU(gate)] with scale = 1 / width or 1.
#include "prism/kernels/rms_norm.h"

struct CUstream_st;

namespace prism::kernels::cuda::norm {

struct Normalization {
  Scalar input = Scalar::kFloat32, result = Scalar::kFloat32;
  int64_t tokens = 0, heads = 1, width = 1;
  double scale = 1, eps = 1e-6;
  RmsNormInputs in;
};

const char* forward(const Normalization& call, void* y, CUstream_st* stream);
int64_t backward_workspace(const Normalization& call);
const char* backward(const Normalization& call, const View& dy, const RmsNormGradients& out, void* workspace,
                     CUstream_st* stream);

}  // namespace prism::kernels::cuda::norm
