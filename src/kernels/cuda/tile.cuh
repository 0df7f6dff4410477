#pragma once
// Tiles of 16-bit elements in shared memory as wgmma and the tensor copies take them.
//
// Swizzled tile [rows][64]: rows of 128 bytes, the 16-byte piece c of row r at piece c ^ (r % 8); starts at a
// multiple of 1024 bytes. Wider matrices are panels of 64 columns, one after the other. Both the copy engine
// (128-byte swizzle) and wgmma read and write this layout.
//
// Block tile: 8x8 blocks of 128 bytes, rows of 16 bytes, no swizzle: what a warp writes when each lane stores
// its 32 bits of an accumulator or operand fragment at 4 * lane.
#include "kernels/cuda/hopper.cuh"

namespace prism::kernels::cuda {

constexpr int kPanelColumns = 64, kPanelRowBytes = 128;

/// Byte offset of columns 8 piece .. 8 piece + 7 of a row of a panel.
__device__ constexpr uint32_t swizzled(int row, int piece) {
  return static_cast<uint32_t>(row * kPanelRowBytes + ((piece ^ (row & 7)) << 4));
}
/// Byte offset of an element of a matrix of `rows` rows in panels.
__device__ constexpr uint32_t swizzled_element(int row, int column, int rows) {
  return (column / 64) * rows * kPanelRowBytes + swizzled(row, (column % 64) / 8) + column % 8 * 2;
}

__device__ inline uint64_t descriptor_bits(uint32_t address, uint32_t leading, uint32_t stride,
                                           uint64_t layout) {
  return (address & 0x3ffff) >> 4 | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 | layout << 62;
}

/// Descriptor of 16 contraction columns of rows of a panel, contiguous along the contraction
/// (Major::kContraction). Contraction columns 16 s ..: pass address + 32 s within a panel, + rows * 128 for
/// the next one. The operand's rows start at a multiple of 8: pass address + row * 128.
__device__ inline uint64_t contraction_major(uint32_t address) {
  return descriptor_bits(address, 16, 1024, 1);
}

/// Descriptor where rows of the panel are the contraction and its columns the operand's rows (Major::kRows).
/// Contraction rows 16 s ..: pass address + 2048 s. `panel_bytes`: from one panel of 64 columns to the next.
__device__ inline uint64_t row_major(uint32_t address, uint32_t panel_bytes) {
  return descriptor_bits(address, panel_bytes, 1024, 1);
}

/// The same two for block tiles: bytes between blocks that are neighbours along the contraction and along the
/// operand's rows. Major::kContraction if the contraction runs along the 16-byte rows, else Major::kRows.
__device__ inline uint64_t block_contraction_major(uint32_t address, uint32_t along_contraction,
                                                   uint32_t along_rows) {
  return descriptor_bits(address, along_contraction, along_rows, 0);
}
__device__ inline uint64_t block_row_major(uint32_t address, uint32_t along_contraction,
                                           uint32_t along_rows) {
  return descriptor_bits(address, along_contraction, along_rows, 0);
}

/// Stores rows 16 w .. 16 w + 15 (w the warp of the warpgroup) of D[64,8 * kTiles] rounded to T into panels
/// of `rows` rows at `address`; D's row r becomes row r.
template <class T, int R>
__device__ void store_tile(uint32_t address, int rows, const float (&d)[R]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = 16 * warp + lane % 16;  // matrices: rows 0-7, 8-15 of piece 2 s, then of piece 2 s + 1
#pragma unroll
  for (int s = 0; s < R / 8; ++s) {
    const uint32_t panel = address + (s / 4) * rows * kPanelRowBytes;
    uint32_t a[4];
    operand_of<T>(a, d, s);
    matrix_store(panel + swizzled(row, 2 * (s % 4) + lane / 16), a[0], a[1], a[2], a[3]);
  }
}

/// The transpose: D's row r becomes column r of the panel, D's columns its rows. D has 64 rows: one panel.
template <class T, int R>
__device__ void store_tile_transposed(uint32_t address, const float (&d)[R]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int s = 0; s < R / 8; ++s) {
    uint32_t a[4];
    operand_of<T>(a, d, s);
    const int row = 16 * s + lane % 8 + lane / 16 * 8;  // matrices a0, a1: columns 16 s ..; a2, a3: 8 further
    matrix_store_transposed(address + swizzled(row, 2 * warp + lane / 8 % 2), a[0], a[1], a[2], a[3]);
  }
}

/// A operand of 64 rows x contraction 16 s .. 16 s + 15 from a panel whose rows are A's rows.
__device__ inline void load_operand(uint32_t (&a)[4], uint32_t panel, int s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  matrix_load(a, panel + swizzled(16 * warp + lane % 16, 2 * s + lane / 16));
}
/// The same from a panel whose rows are the contraction and whose columns are A's rows.
__device__ inline void load_operand_transposed(uint32_t (&a)[4], uint32_t panel, int s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = 16 * s + lane % 8 + lane / 16 * 8;
  matrix_load_transposed(a, panel + swizzled(row, 2 * warp + lane / 8 % 2));
}

}  // namespace prism::kernels::cuda
