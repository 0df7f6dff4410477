#include "prism/serve/recommender_service.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"
#include "prism/data/interactions.h"
#include "serve/service_impl.h"

namespace prism {
namespace {

std::vector<int32_t> sorted_unique(std::vector<int32_t> items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

/// Why a list has fewer items than asked for; "" when it has not.
std::string explain_short_list(int64_t found, const RecommendOptions& options, int64_t items, int64_t seen) {
  if (found >= options.top) return "";
  std::vector<std::string> reasons;
  if (options.filter_seen && seen > 0)
    reasons.push_back(seen >= items
                          ? fmt::format("the history has every one of the {} items", with_commas(items))
                          : fmt::format("{} items of the history are left out", with_commas(seen)));
  if (!options.allow.empty())
    reasons.push_back(
        fmt::format("{} items are allowed", with_commas(static_cast<int64_t>(options.allow.size()))));
  if (!options.exclude.empty())
    reasons.push_back(
        fmt::format("{} items are excluded", with_commas(static_cast<int64_t>(options.exclude.size()))));
  if (reasons.empty()) return fmt::format("the run knows only {} items", with_commas(items));
  return fmt::format("{} of {} items asked for: {}", found, with_commas(options.top),
                     fmt::join(reasons, ", "));
}

void check_options(const RecommendOptions& options) {
  if (options.top < 1) usage_error("recommend: top is {}, expected at least 1", options.top);
}

}  // namespace

ServiceImpl::ServiceImpl(ServiceParts service_parts)
    : parts(std::move(service_parts)),
      panels(item_panels(*parts.model)),
      popularity(parts.item_counts.data(), static_cast<int64_t>(parts.item_counts.size()), 1) {
  const int64_t items = panels.items();
  check(parts.items.size() == items, "recommend: the model has {} items, the vocabulary {}", items,
        parts.items.size());
  check(popularity.items() == items, "recommend: the model has {} items, {} have counts", items,
        popularity.items());
  check(parts.titles.empty() || static_cast<int64_t>(parts.titles.size()) == items,
        "recommend: the model has {} items, {} have titles", items, parts.titles.size());
  parts.model->eval();
}

ItemBits ServiceImpl::item_bits(const RecommendOptions& options, std::vector<std::string>& unknown) const {
  if (options.allow.empty() && options.exclude.empty()) return {};
  const auto items = static_cast<size_t>(panels.items());
  ItemBits bits((items + 63) / 64, options.allow.empty() ? ~uint64_t{0} : 0);
  const auto assign = [&](const std::string& id, bool value) {
    const int64_t index = parts.items.find(id);
    if (index < 0) return unknown.push_back(id);
    uint64_t& word = bits[static_cast<size_t>(index / 64)];
    const uint64_t bit = uint64_t{1} << (index % 64);
    word = value ? word | bit : word & ~bit;
  };
  for (const std::string& id : options.allow) assign(id, true);
  for (const std::string& id : options.exclude) assign(id, false);
  return bits;
}

Recommendations ServiceImpl::list(const float* user_vector, std::span<const int32_t> seen,
                                  const RecommendOptions& options) const {
  check_options(options);
  Recommendations result{.items = {}, .unknown = {}, .by_popularity = user_vector == nullptr, .note = ""};
  const ItemBits bits = item_bits(options, result.unknown);
  const int64_t offsets[2] = {0, static_cast<int64_t>(seen.size())},
                k = std::min(options.top, panels.items());
  const float one = 1;
  const kernels::RankUsers user{.vectors = user_vector ? user_vector : &one,
                                .count = 1,
                                .seen_offsets = options.filter_seen ? offsets : nullptr,
                                .seen = seen.data(),
                                .allowed = bits.empty() ? nullptr : bits.data()};
  std::vector<int32_t> top(static_cast<size_t>(k));
  std::vector<float> scores(top.size());
  int64_t found = 0;
  top_items(user_vector ? panels : popularity, user, k, top.data(), scores.data(), &found);
  for (size_t i = 0; i < static_cast<size_t>(found); ++i)
    result.items.push_back({.id = std::string(parts.items.name(top[i])),
                            .title = parts.titles.empty() ? "" : parts.titles[static_cast<size_t>(top[i])],
                            .score = scores[i]});
  result.note = explain_short_list(found, options, panels.items(), static_cast<int64_t>(seen.size()));
  if (result.by_popularity)
    result.note = "the history has no known item: the most popular items" +
                  (result.note.empty() ? "" : "; " + result.note);
  return result;
}

Recommendations ServiceImpl::answer(const std::vector<std::string_view>& history,
                                    std::span<const int64_t> times, int64_t ticks,
                                    const RecommendOptions& options) const {
  std::vector<std::string> unknown;
  std::vector<int32_t> items;
  std::vector<int64_t> known_times;
  for (size_t i = 0; i < history.size(); ++i) {
    const int64_t index = parts.items.find(history[i]);
    if (index < 0) {
      unknown.emplace_back(history[i]);
      continue;
    }
    items.push_back(static_cast<int32_t>(index));
    if (!times.empty()) known_times.push_back(times[i]);
  }
  at::Tensor vector;
  if (!items.empty()) {
    const History known{.items = items, .times = known_times};
    vector = user_vectors(*parts.model, {&known, 1}, ticks);
  }
  Recommendations result =
      list(vector.defined() ? vector.const_data_ptr<float>() : nullptr, sorted_unique(items), options);
  result.unknown.insert(result.unknown.begin(), unknown.begin(), unknown.end());
  return result;
}

uint32_t ServiceImpl::weights_fingerprint() const {
  if (fingerprint) return fingerprint;
  uint32_t crc = 0;
  for (const at::Tensor& parameter : parts.model->parameters()) {
    const at::Tensor bytes = parameter.detach().cpu().contiguous();
    crc = crc32_of(bytes.const_data_ptr(), bytes.nbytes(), crc);
  }
  return fingerprint = std::max(crc, 1U);
}

RecommenderService::RecommenderService(ServiceParts parts)
    : impl_(std::make_unique<ServiceImpl>(std::move(parts))) {}
RecommenderService::RecommenderService(RecommenderService&&) noexcept = default;
RecommenderService& RecommenderService::operator=(RecommenderService&&) noexcept = default;
RecommenderService::~RecommenderService() = default;

Recommendations RecommenderService::recommend(std::span<const std::string> history,
                                              const RecommendOptions& options,
                                              std::span<const int64_t> seconds) {
  check(seconds.empty() || seconds.size() == history.size(), "recommend: {} items, but {} times",
        history.size(), seconds.size());
  return impl_->answer({history.begin(), history.end()}, seconds, 1, options);
}

Recommendations RecommenderService::recommend_user(const Interactions& log, int64_t user,
                                                   const RecommendOptions& options) {
  check(user >= 0 && user < log.users.size(), "recommend: user {} of {}", user, log.users.size());
  std::vector<std::string_view> history;
  for (const int32_t item : log.history(user)) history.push_back(log.items.name(item));
  return impl_->answer(history, log.times(user), ticks_per_second(log), options);
}

int64_t RecommenderService::items() const { return impl_->panels.items(); }
const Vocabulary& RecommenderService::vocabulary() const { return impl_->parts.items; }
std::string_view RecommenderService::title(int64_t index) const {
  return impl_->parts.titles.empty() ? std::string_view() : impl_->parts.titles[static_cast<size_t>(index)];
}
Recommender& RecommenderService::model() { return *impl_->parts.model; }

}  // namespace prism
