#pragma once
// How packed sequences are cut into chunks.
#include <cstdint>
#include <vector>

#include "prism/kernels/types.h"

namespace prism::kernels {

/// Index of the first chunk of every sequence, and the number of all chunks at the end.
inline std::vector<int64_t> chunk_starts(const Sequences& sequences, int64_t chunk) {
  std::vector<int64_t> starts(sequences.count + 1, 0);
  for (int64_t n = 0; n < sequences.count; ++n)
    starts[n + 1] = starts[n] + (sequences.offsets[n + 1] - sequences.offsets[n] + chunk - 1) / chunk;
  return starts;
}

}  // namespace prism::kernels
