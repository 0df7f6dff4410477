#pragma once
// Rows of a View [tokens, heads, width] by their number, with 64 bits throughout, and the accesses to them.
#include <cstdint>

#include "kernels/cuda/vectors.cuh"

namespace prism::kernels::cuda {

struct RowPlace {
  int64_t token, head;
};

/// Numbers of 32 bits, nearly all there are, are divided as such: the 64-bit division costs as much as the
/// work on a narrow row.
__device__ inline RowPlace place_of(int64_t row, int64_t heads) {
  if (heads == 1) return {row, 0};
  if ((row | heads) <= int64_t{UINT32_MAX}) {
    const auto r = static_cast<uint32_t>(row), h = static_cast<uint32_t>(heads);
    return {r / h, r % h};
  }
  return {row / heads, row % heads};
}

/// A View as a kernel holds it; strides that nothing is multiplied with are zero.
struct RowView {
  RowView() = default;
  RowView(const View& view, int64_t tokens, int64_t heads)
      : data(view.data),
        token_stride(tokens > 1 ? view.token_stride : 0),
        head_stride(heads > 1 ? view.head_stride : 0) {}

  template <class T>
  __device__ const T* row(RowPlace at) const {
    return static_cast<const T*>(data) + at.token * token_stride + at.head * head_stride;
  }
  /// Whether every row starts at a multiple of N elements of T.
  template <class T, int N>
  bool is_aligned() const {
    return reinterpret_cast<uintptr_t>(data) % (N * sizeof(T)) == 0 && token_stride % N == 0 &&
           head_stride % N == 0;
  }

  const void* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
};

/// Whether a contiguous tensor with rows of a multiple of N elements can be written in vectors of them.
template <class T, int N>
bool is_aligned(const void* out) {
  return reinterpret_cast<uintptr_t>(out) % (N * sizeof(T)) == 0;
}

/// A store of data that is read soon.
template <class T, int N>
__device__ void store(const Vector<T, N>& x, T* to) {
  if constexpr (sizeof(x) == 16)
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&x);
  else
    *reinterpret_cast<Vector<T, N>*>(to) = x;
}

}  // namespace prism::kernels::cuda
