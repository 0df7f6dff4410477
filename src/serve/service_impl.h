#pragma once
#include <ATen/core/Tensor.h>

#include "prism/evaluate/user_vectors.h"
#include "prism/serve/recommender_service.h"

namespace prism {

/// Allowed items as the bits that the ranking kernel takes; empty: all.
using ItemBits = std::vector<uint64_t>;

struct ServiceImpl {
  ServiceParts parts;
  kernels::ItemPanels panels;        ///< of the model
  kernels::ItemPanels popularity;    ///< of width 1: the interactions of each item
  mutable uint32_t fingerprint = 0;  ///< of the weights; 0: not computed yet

  explicit ServiceImpl(ServiceParts service_parts);

  /// Bits of options.allow without options.exclude; unknown ids go to `unknown`.
  ItemBits item_bits(const RecommendOptions& options, std::vector<std::string>& unknown) const;
  /// The list for a user vector (float [D] on the CPU), or by popularity where it is null. `seen` ascending.
  Recommendations list(const float* user_vector, std::span<const int32_t> seen,
                       const RecommendOptions& options) const;
  /// The list after a history of ids; `times` one an item in units of 1 / ticks seconds, or empty.
  Recommendations answer(const std::vector<std::string_view>& history, std::span<const int64_t> times,
                         int64_t ticks, const RecommendOptions& options) const;
  /// A checksum of the model's weights, to recognise sessions of another model.
  uint32_t weights_fingerprint() const;
};

struct SessionImpl {
  const ServiceImpl* service = nullptr;
  RecommenderState state;
  at::Tensor vector;           ///< float [D] on the CPU; undefined at the start
  std::vector<int32_t> items;  ///< known items, oldest first
  std::vector<int64_t> gaps;   ///< seconds before each item
  std::optional<int64_t> last_seconds;
};

}  // namespace prism
