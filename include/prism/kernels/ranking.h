#pragma once
// Inner-product ranking of all items for many users, without ever holding users x items scores.
//
// score(u, i) = fma(u[D-1], v_i[D-1], ... fma(u[1], v_i[1], fma(u[0], v_i[0], 0))) in float: one chain in the
// order of the width. Every function below evaluates exactly this chain, so a score has the same bits
// whatever the number of users, the tile, the thread count or the function.
//
// Order of a user's items: higher score first, NaN after every number, equal scores (and two NaN) by lower
// index.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace prism::kernels {

/// Item vectors in the layout of the kernel: panels of 64 items, [panels][width][64], the last one padded
/// with zeros.
class ItemPanels {
 public:
  static constexpr int64_t kItems = 64;

  ItemPanels() = default;
  /// vectors [items, width] float, contiguous; copied.
  ItemPanels(const float* vectors, int64_t items, int64_t width);

  int64_t items() const { return items_; }
  int64_t width() const { return width_; }
  int64_t panels() const { return (items_ + kItems - 1) / kItems; }
  const float* panel(int64_t index) const { return data_.get() + index * width_ * kItems; }

 private:
  struct Free {
    void operator()(float* data) const;
  };
  int64_t items_ = 0, width_ = 0;
  std::unique_ptr<float[], Free> data_;
};

/// Users whose items are ranked.
struct RankUsers {
  const float* vectors = nullptr;  ///< [count, width], contiguous
  int64_t count = 0;
  /// Hidden items of user u: seen[seen_offsets[u], seen_offsets[u + 1]), ascending, repeats allowed. Null:
  /// none.
  const int64_t* seen_offsets = nullptr;
  const int32_t* seen = nullptr;
  /// Bit i % 64 of word i / 64: item i is a candidate. Null: all are.
  const uint64_t* allowed = nullptr;
};

/// Where the target of one user stands among its candidates. Counts leave the target itself out.
struct RankCounts {
  int64_t greater = 0;       ///< candidates with a higher score
  int64_t equal = 0;         ///< candidates with an equal score
  int64_t equal_before = 0;  ///< those of `equal` with a lower index than the target
  int64_t candidates = 0;    ///< all of them, the target included
  int64_t nan = 0;           ///< candidates whose score is NaN, the target included

  int64_t rank() const { return 1 + greater + equal_before; }
  int64_t lower() const { return candidates - 1 - greater - equal; }
};

/// Counts for targets[u] of each user. A target is a candidate even where it is seen or not allowed.
void rank_targets(const ItemPanels& items, const RankUsers& users, const int32_t* targets,
                  RankCounts* counts);

/// The first k candidates of each user in order. items [count, k] and scores [count, k]; found[u] of them are
/// valid, fewer than k where a user has fewer candidates. The rest is -1 and NaN.
void top_items(const ItemPanels& items, const RankUsers& users, int64_t k, int32_t* top, float* scores,
               int64_t* found);

/// Scores of single items: out[p] = score(user_rows[p], item_ids[p]).
void score_pairs(const ItemPanels& items, const float* user_vectors, const int64_t* user_rows,
                 const int32_t* item_ids, int64_t pairs, float* out);

}  // namespace prism::kernels
