#pragma once
// How the packed tokens are cut, from the sequences' lengths alone.
#include <algorithm>
#include <vector>

#include "prism/kernels/short_conv.h"

namespace prism::kernels {

/// Tokens [begin, end) of a sequence that covers [start, sequence_end).
struct ConvBlock {
  int64_t sequence, start, sequence_end, begin, end;
};

inline constexpr int64_t kConvTokens = 128;

inline std::vector<ConvBlock> conv_blocks(const ShortConvShape& shape) {
  std::vector<ConvBlock> blocks;
  for (int64_t n = 0; n < shape.sequences.count; ++n) {
    const int64_t start = shape.sequences.offsets[n], end = shape.sequences.offsets[n + 1];
    for (int64_t begin = start; begin < end; begin += kConvTokens)
      blocks.push_back({n, start, end, begin, std::min(end, begin + kConvTokens)});
  }
  return blocks;
}

/// Bounds of runs of consecutive blocks that share partial sums: at least kConvTokens tokens each but the
/// last.
inline std::vector<int64_t> conv_runs(const std::vector<ConvBlock>& blocks) {
  std::vector<int64_t> bounds{0};
  int64_t tokens = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    tokens += blocks[i].end - blocks[i].begin;
    if (tokens < kConvTokens && i + 1 < blocks.size()) continue;
    bounds.push_back(static_cast<int64_t>(i) + 1);
    tokens = 0;
  }
  return bounds;
}

}  // namespace prism::kernels
