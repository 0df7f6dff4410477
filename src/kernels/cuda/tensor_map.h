#pragma once
// Tensor maps for the copy engine.
#include <cuda.h>

#include <cstdint>

#include "prism/kernels/types.h"

namespace prism::kernels::cuda {

/// A tensor [tokens, steps, heads, width] of 16-bit elements, loaded in tiles of `rows` tokens, `panels`
/// panels of 64 columns and `steps_a_tile` steps of one head.
struct TileMap {
  Scalar dtype = Scalar::kBFloat16;
  View view;
  int64_t tokens = 0, steps = 1, heads = 1, width = 64;
  int rows = 64, panels = 1, steps_a_tile = 1;
};

/// Coordinates: (0, token, panel, head, step). A tile lies in shared memory as [step][panel][row][64
/// columns], each panel swizzled (tile.cuh); what lies outside the tensor is filled with zeros, also columns
/// beyond a width of 32. Returns nullptr, or what the driver said.
const char* make_tile_map(CUtensorMap& map, const TileMap& tile);

}  // namespace prism::kernels::cuda
