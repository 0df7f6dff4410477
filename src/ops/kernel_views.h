#pragma once
// Tensors as the kernels take them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

#include "prism/core/error.h"
#include "prism/kernels/types.h"
#include "prism/ops/packing.h"

namespace prism {

/// `type` is fp64, fp32, bf16 or, for the CUDA kernels, fp16.
inline kernels::Scalar kernel_scalar(at::ScalarType type) {
  if (type == at::kDouble) return kernels::Scalar::kFloat64;
  if (type == at::kHalf) return kernels::Scalar::kFloat16;
  return type == at::kBFloat16 ? kernels::Scalar::kBFloat16 : kernels::Scalar::kFloat32;
}

/// Whether the CUDA kernels know a type; kernel_scalar takes only these.
inline bool is_kernel_type(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// Whether a CPU kernel takes x: fp64, fp32 or bf16 in the processor's memory.
inline bool takes_cpu_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cpu() && (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

/// Where each sequence starts in the flattened tokens of x [B,T,...].
inline std::vector<int64_t> offsets_of(const at::Tensor& x, const Packing& packing) {
  if (packing.is_packed()) return packing.offsets();
  std::vector<int64_t> offsets(x.size(0) + 1);
  for (int64_t n = 0; n <= x.size(0); ++n) offsets[n] = n * x.size(1);
  return offsets;
}

/// x [lead...,(steps,)heads,width] as a View over its flattened leading dimensions. Where those do not
/// flatten or the width is not contiguous, `holder` takes a contiguous copy; otherwise it shares x's memory.
/// Keep it alive. `trailing`: 2 for [heads,width], 3 with steps.
inline kernels::View view_of(const at::Tensor& x, int64_t trailing, at::Tensor& holder) {
  const int64_t lead = x.dim() - trailing;
  // The token stride of the last leading dimension with more than one entry; those before must continue it.
  const auto flattens = [&](int64_t& token_stride) {
    token_stride = 0;
    int64_t expected = -1;
    for (int64_t d = lead - 1; d >= 0; --d) {
      if (x.size(d) == 1) continue;
      if (expected < 0)
        token_stride = x.stride(d);
      else if (x.stride(d) != expected)
        return false;
      expected = x.stride(d) * x.size(d);
    }
    return x.size(-1) == 1 || x.stride(-1) == 1;
  };
  int64_t token_stride = 0;
  holder = x;
  if (!flattens(token_stride)) {
    holder = x.contiguous();
    token_stride = 1;
    for (int64_t d = lead; d < holder.dim(); ++d) token_stride *= holder.size(d);
  }
  return {.data = holder.const_data_ptr(),
          .token_stride = token_stride,
          .step_stride = trailing == 3 ? holder.stride(-3) : 0,
          .head_stride = holder.stride(-2)};
}

/// The same for kernels with vector accesses and for the copy engine of a GPU, which want the address and
/// every stride that is used in multiples of 16 bytes; a copy where x does not have them.
inline kernels::View aligned_view_of(const at::Tensor& x, int64_t trailing, at::Tensor& holder) {
  const int64_t each = 16 / x.element_size();
  const kernels::View view = view_of(x, trailing, holder);
  const auto fits = [&](int64_t stride, int64_t size) {
    return size == 1 || (stride > 0 && stride % each == 0);
  };
  int64_t tokens = 1;
  for (int64_t d = 0; d < x.dim() - trailing; ++d) tokens *= x.size(d);
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && fits(view.token_stride, tokens) &&
                       fits(view.head_stride, x.size(-2)) &&
                       (trailing == 2 || fits(view.step_stride, x.size(-3)));
  return aligned ? view : view_of(holder = x.clone(at::MemoryFormat::Contiguous), trailing, holder);
}

/// An uninitialised, contiguous tensor like `x`: where a kernel puts its gradient.
inline at::Tensor empty_like_input(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

/// Error where a CUDA kernel of `op` said what went wrong.
inline void check_launch(const char* op, const char* problem) {
  if (problem) fail("{}: the CUDA kernel failed: {}", op, problem);
}

/// nullptr for a tensor that stands for none.
inline void* data_or_null(const at::Tensor& x) { return x.numel() ? x.mutable_data_ptr() : nullptr; }

}  // namespace prism
