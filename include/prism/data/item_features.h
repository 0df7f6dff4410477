#pragma once
#include <ATen/core/Tensor.h>

#include "prism/data/data_config.h"
#include "prism/data/vocabulary.h"

namespace prism {

/// Fixed vectors of items, such as embeddings of their texts, from data.item_features: a matrix in a .npy
/// file (float16, float32 or float64, C order) or the tensor "features" of a .safetensors file. Row r belongs
/// to the item named in line r of data.item_feature_ids. Returns float [items, F] in the order of `items`,
/// each row scaled to length 1, zeros for items without a row (their number is told); undefined when no file
/// is named. Throws Error for files that do not fit each other, and when no item is found.
at::Tensor read_item_features(const DataConfig& config, const Vocabulary& items);

}  // namespace prism
