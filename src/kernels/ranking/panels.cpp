#include <algorithm>
#include <new>

#include "kernels/ranking/tile.h"
#include "prism/kernels/ranking.h"

namespace prism::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

/// panel [width][64] from the items' rows [count][width].
void pack_panel(const float* rows, int64_t count, int64_t width, float* panel) {
  for (int64_t i = 0; i < width; ++i) {
    float* line = panel + i * ItemPanels::kItems;
    for (int64_t item = 0; item < count; ++item) line[item] = rows[item * width + i];
    std::fill(line + count, line + ItemPanels::kItems, 0.0F);
  }
}

}  // namespace

void ItemPanels::Free::operator()(float* data) const { ::operator delete[](data, kAlignment); }

ItemPanels::ItemPanels(const float* vectors, int64_t items, int64_t width) : items_(items), width_(width) {
  const auto floats = static_cast<size_t>(panels() * width * kItems);
  data_.reset(new (kAlignment) float[floats]);
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < panels(); ++p)
    pack_panel(vectors + p * kItems * width, std::min(kItems, items - p * kItems), width,
               data_.get() + p * width * kItems);
}

void score_pairs(const ItemPanels& items, const float* user_vectors, const int64_t* user_rows,
                 const int32_t* item_ids, int64_t pairs, float* out) {
#pragma omp parallel for schedule(static)
  for (int64_t p = 0; p < pairs; ++p)
    out[p] =
        ranking::score_one(items.panel(item_ids[p] / ItemPanels::kItems), items.width(),
                           user_vectors + user_rows[p] * items.width(), item_ids[p] % ItemPanels::kItems);
}

}  // namespace prism::kernels
