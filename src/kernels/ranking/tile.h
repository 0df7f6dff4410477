#pragma once
#include <cstddef>
#include <cstdint>

namespace prism::kernels::ranking {

/// Users that share one pass over a panel: 6 x 64 scores fill the 32 registers of AVX-512 (24 sums, 4 item
/// vectors, 1 user value), 6 x 16 the 16 registers of AVX2.
constexpr int64_t kGroupUsers = 6;

/// scores [users][64] of `users` <= kGroupUsers rows of user_vectors [users, width] with one panel.
void score_tile(const float* panel, int64_t width, const float* user_vectors, int64_t users, float* scores);

/// The score of user_vector with item `column` of the panel; the same bits as score_tile.
float score_one(const float* panel, int64_t width, const float* user_vector, int64_t column);

/// One bit an item of scores[64]; a comparison with NaN is false.
struct RowBits {
  uint64_t greater, equal, lower;
};
RowBits compare_row(const float* scores, float value);

/// Only RowBits::greater.
uint64_t greater_row(const float* scores, float value);

}  // namespace prism::kernels::ranking
