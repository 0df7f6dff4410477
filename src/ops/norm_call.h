#pragma once
// What the norms' kernels take on every device, and the way to those of libprism_cuda.so.
#include <ATen/core/Tensor.h>

#include "kernel_views.h"
#include "prism/kernels/l2norm.h"
#include "prism/kernels/rms_norm.h"

namespace prism {

/// Rows of the last dimension, their leading dimensions [N,H] where x has that many.
struct NormRows {
  explicit NormRows(const at::Tensor& x) : shaped(x.dim() >= 3 ? x : x.unsqueeze(-2)) {
    view = view_of(shaped, 2, held);
    heads = shaped.size(-2), width = shaped.size(-1);
    tokens = shaped.numel() > 0 ? shaped.numel() / (heads * width) : 0;
  }
  NormRows(const NormRows&) = delete;
  NormRows& operator=(const NormRows&) = delete;

  at::Tensor shaped, held;
  kernels::View view;
  int64_t tokens, heads, width;
};

inline kernels::L2NormShape l2_norm_shape(const NormRows& rows, const at::Tensor& x, double eps) {
  return {kernel_scalar(x.scalar_type()), rows.tokens, rows.heads, rows.width, eps};
}

/// A call of rms_norm; `gate` may be undefined.
struct RmsNormCall {
  RmsNormCall(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, double eps)
      : rows(x), gate_rows(gate.defined() ? gate : x) {
    shape = {kernel_scalar(x.scalar_type()), rows.tokens, rows.heads, rows.width, eps};
    in = {rows.view, weight.const_data_ptr(), gate.defined() ? gate_rows.view : kernels::View{}};
  }
  NormRows rows, gate_rows;
  kernels::RmsNormShape shape;
  kernels::RmsNormInputs in;
};

/// Whether the CUDA kernels serve rows of x.
bool has_cuda_norm(const at::Tensor& x);

at::Tensor l2_norm_cuda(const at::Tensor& x, double eps);
/// `gate` may be undefined. The result has autocast's type where that is on and x is fp32 without a gate.
at::Tensor rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, double eps);

}  // namespace prism
