#pragma once
#include <string>

#include "prism/core/random.h"
#include "prism/data/interactions.h"
#include "prism/models/recommender.h"
#include "prism/serve/recommender_service.h"

namespace prism::test {

inline std::shared_ptr<Recommender> small_model(const std::string& mixer, int64_t items, bool gaps = false,
                                                uint64_t seed = 5) {
  ModelSpec spec(mixer);
  spec.model.mixer = mixer;
  spec.model.width = 32;
  spec.model.max_length = 12;
  spec.model.time_gaps = gaps;
  return std::make_shared<Recommender>(spec, items, seed);
}

/// Items "i0", "i1", ...; item i has i % 7 interactions; every second one has a title.
inline RecommenderService small_service(const std::string& mixer, int64_t items, bool gaps = false,
                                        uint64_t seed = 5) {
  ServiceParts parts{
      .model = small_model(mixer, items, gaps, seed), .items = {}, .titles = {}, .item_counts = {}};
  for (int64_t i = 0; i < items; ++i) {
    parts.items.add("i" + std::to_string(i));
    parts.titles.push_back(i % 2 ? "" : "Title " + std::to_string(i));
    parts.item_counts.push_back(static_cast<float>(i % 7));
  }
  return RecommenderService(std::move(parts));
}

/// Users "u0", ... with histories of 1 to `longest` random items and rising times.
inline Interactions small_log(int64_t users, int64_t items, int64_t longest) {
  Interactions log;
  RandomStream random(3, "log");
  for (int64_t i = 0; i < items; ++i) log.items.add("i" + std::to_string(i));
  for (int64_t u = 0; u < users; ++u) {
    log.users.add("u" + std::to_string(u));
    int64_t time = 1000;
    for (uint64_t n = 1 + random.below(static_cast<uint64_t>(longest)); n > 0; --n) {
      log.item.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(items))));
      log.time.push_back(time += static_cast<int64_t>(random.below(100000)));
    }
    log.offsets.push_back(log.size());
  }
  return log;
}

inline std::vector<std::string> names_of(std::span<const int32_t> items) {
  std::vector<std::string> names;
  for (const int32_t item : items) names.push_back("i" + std::to_string(item));
  return names;
}

}  // namespace prism::test
