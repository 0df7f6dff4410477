#pragma once
// The solve: what the passes over the states need of every chunk and value head, made for all chunks in
// parallel.
#include "kernels/prism_chunk/cuda/schedule.cuh"

namespace prism::kernels::cuda {

/// One record a (chunk slot, value head), at records + (slot * heads + head) * kRecordBytes; aligned to 256:
///   bytes 0 ..    T[64,64] = Gam * inv(I + strict(diag(b) E E^T)) in `dtype`, one swizzled panel (tile.cuh);
///                 the upper triangle is 0
///   bytes 8192 .. G[64]: the running sum of the log-gates inside the chunk, base 2, fp32, <= 0
///   bytes 8448 .. b[64], fp32
/// Tokens beyond the sequence's end count as g = 0, b = 0, k = 0: T's row is the identity's.
inline constexpr int kRecordT = 0, kRecordG = 8192, kRecordB = 8448, kRecordBytes = 8704;

inline int64_t record_bytes(const PrismChunkCudaShape& shape, int64_t slots) {
  return slots * shape.heads * kRecordBytes;
}

/// One launch for the slots [first, end); `records` starts with those of `first`. Records of slots without a
/// chunk are not written.
const char* launch_solve(const PrismChunkCudaShape& shape, const PrismChunkInputs& in, int64_t first,
                         int64_t end, void* records, CUstream_st* stream);

/// Chunk-start states: S^T (V rows, K columns) of a (chunk slot, value head) at
/// states + ((slot * heads + head) * slices + slice) * 64 * padded(K) elements, slice = 64 value channels;
/// inside a slice a block tile (tile.cuh): [k / 8][v / 8 % 8][v % 8][k % 8]. Channels beyond K or V are 0.
inline int64_t padded_width(int64_t width) { return width < 64 ? 64 : width; }
inline int64_t value_slices(int64_t width) { return (width + 63) / 64; }
/// Bytes of the rounded states of all heads.
inline int64_t state_bytes(const PrismChunkCudaShape& shape) {
  return 2 * shape.heads * padded_width(shape.key_width) * padded_width(shape.value_width);
}

}  // namespace prism::kernels::cuda
