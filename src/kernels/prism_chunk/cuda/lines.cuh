#pragma once
// Operands in global memory, for a warp that prefetches them into the L2 cache.
#include "kernels/cuda/hopper.cuh"
#include "prism/kernels/types.h"

namespace prism::kernels::cuda {

/// Rows of a tensor [tokens, steps, heads, width] of 16-bit elements; strides in bytes.
struct Lines {
  const char* data = nullptr;
  int64_t token_stride = 0, step_stride = 0, head_stride = 0;

  static Lines of(const View& view) {
    return {static_cast<const char*>(view.data), 2 * view.token_stride, 2 * view.step_stride,
            2 * view.head_stride};
  }

  /// `lines` lines of 128 bytes of every token's row, from line `first` on; all lanes of a warp.
  __device__ void prefetch(int64_t token, int tokens, int step, int head, int lines, int first,
                           int lane) const {
    const char* const from =
        data + token * token_stride + step * step_stride + head * head_stride + 128 * first;
#pragma unroll 1
    for (int i = lane; i < tokens * lines; i += 32)
      prefetch_line(from + i / lines * token_stride + i % lines * 128);
  }
};

}  // namespace prism::kernels::cuda
