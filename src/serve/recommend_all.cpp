// Lists for every user of a log, a block of users at a time.
#include <algorithm>

#include "prism/core/error.h"
#include "prism/data/interactions.h"
#include "serve/service_impl.h"

namespace prism {
namespace {

constexpr int64_t kUsersAtOnce = 4096;
constexpr int64_t kEntriesAtOnce = int64_t{1} << 24;  // of the lists that wait to be written: 192 MiB

/// Histories of a block of users in the model's item indices.
struct Block {
  std::vector<std::vector<int32_t>> items;
  std::vector<std::vector<int64_t>> times;
  std::vector<int64_t> seen_offsets = {0};
  std::vector<int32_t> seen;

  Block(const Interactions& log, const std::vector<int32_t>& model_item, int64_t first, int64_t last) {
    for (int64_t user = first; user < last; ++user) {
      const auto history = log.history(user);
      const auto at = log.times(user);
      auto& known = items.emplace_back();
      auto& known_times = times.emplace_back();
      for (size_t i = 0; i < history.size(); ++i) {
        const int32_t item = model_item[static_cast<size_t>(history[i])];
        if (item < 0) continue;
        known.push_back(item);
        if (!at.empty()) known_times.push_back(at[i]);
      }
      const auto begin = seen.insert(seen.end(), known.begin(), known.end());
      std::sort(begin, seen.end());
      seen.erase(std::unique(begin, seen.end()), seen.end());
      seen_offsets.push_back(static_cast<int64_t>(seen.size()));
    }
  }
};

/// The model's index of each item of the log; -1 where it has none.
std::vector<int32_t> match_items(const Vocabulary& log_items, const Vocabulary& model_items) {
  std::vector<int32_t> indices;
  for (int64_t item = 0; item < log_items.size(); ++item)
    indices.push_back(static_cast<int32_t>(model_items.find(log_items.name(item))));
  return indices;
}

/// Vectors of the users that have a known item; rows of the others are zero.
at::Tensor block_vectors(Recommender& model, const Block& block, int64_t ticks) {
  std::vector<History> histories;
  std::vector<int64_t> rows;
  for (size_t u = 0; u < block.items.size(); ++u)
    if (!block.items[u].empty()) {
      histories.push_back({.items = block.items[u], .times = block.times[u]});
      rows.push_back(static_cast<int64_t>(u));
    }
  at::Tensor vectors = user_vectors(model, histories, ticks);
  if (rows.size() == block.items.size()) return vectors;
  at::Tensor all = vectors.new_zeros({static_cast<int64_t>(block.items.size()), vectors.size(1)});
  return all.index_copy_(0, at::tensor(rows, at::kLong), vectors);
}

}  // namespace

std::vector<std::string> RecommenderService::recommend_all(
    const Interactions& log, const RecommendOptions& options,
    const std::function<bool(int64_t, const BatchRecommendations&)>& write) {
  if (options.top < 1) usage_error("recommend: top is {}, expected at least 1", options.top);
  std::vector<std::string> unknown;
  const ItemBits bits = impl_->item_bits(options, unknown);
  const std::vector<int32_t> model_item = match_items(log.items, impl_->parts.items);
  const int64_t k = std::min(options.top, items());
  const int64_t users_at_once =
      std::clamp<int64_t>(kEntriesAtOnce / std::max<int64_t>(k, 1), 1, kUsersAtOnce);
  for (int64_t first = 0; first < log.users.size(); first += users_at_once) {
    const int64_t last = std::min(first + users_at_once, log.users.size());
    const Block block(log, model_item, first, last);
    const at::Tensor vectors = block_vectors(*impl_->parts.model, block, ticks_per_second(log));
    BatchRecommendations lists{.top = k, .items = {}, .scores = {}, .found = {}};
    lists.items.resize(static_cast<size_t>((last - first) * k));
    lists.scores.resize(lists.items.size());
    lists.found.resize(static_cast<size_t>(last - first));
    kernels::RankUsers users{.vectors = vectors.const_data_ptr<float>(),
                             .count = last - first,
                             .seen_offsets = options.filter_seen ? block.seen_offsets.data() : nullptr,
                             .seen = block.seen.data(),
                             .allowed = bits.empty() ? nullptr : bits.data()};
    top_items(impl_->panels, users, k, lists.items.data(), lists.scores.data(), lists.found.data());
    const float one = 1;
    users.vectors = &one;
    users.count = 1;
    users.seen_offsets = nullptr;
    for (int64_t u = 0; u < last - first; ++u)
      if (block.items[static_cast<size_t>(u)].empty())
        top_items(impl_->popularity, users, k, lists.items.data() + u * k, lists.scores.data() + u * k,
                  lists.found.data() + u);
    if (!write(first, lists)) break;
  }
  return unknown;
}

}  // namespace prism
