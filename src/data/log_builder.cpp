#include "log_builder.h"

#include <algorithm>

namespace prism {
namespace {
constexpr size_t kChunkRows = size_t{1} << 17;
}

LogBuilder::Chunk& LogBuilder::chunk() {
  if (chunks_.empty() || chunks_.back().user.size() == kChunkRows) {
    Chunk& fresh = chunks_.emplace_back();
    fresh.user.reserve(kChunkRows);
    fresh.item.reserve(kChunkRows);
    if (timed_) fresh.time.reserve(kChunkRows);
  }
  return chunks_.back();
}

void LogBuilder::add(int32_t user, int32_t item) {
  Chunk& last = chunk();
  last.user.push_back(user);
  last.item.push_back(item);
  ++size_;
}

bool LogBuilder::add(int32_t user, int32_t item, Decimal time) {
  if (time.decimals > decimals_ && !raise_decimals(time.decimals)) return false;
  if (time.decimals < decimals_ && !rescale(time, decimals_)) return false;
  lowest_ = std::min(lowest_, time.mantissa);
  highest_ = std::max(highest_, time.mantissa);
  add(user, item);
  chunks_.back().time.push_back(time.mantissa);
  return true;
}

bool LogBuilder::raise_decimals(int32_t decimals) {
  Decimal low{lowest_, decimals_}, high{highest_, decimals_}, factor{1, decimals_};
  if (!rescale(low, decimals) || !rescale(high, decimals) || !rescale(factor, decimals)) return false;
  for (Chunk& each : chunks_)
    for (int64_t& time : each.time) time *= factor.mantissa;
  lowest_ = low.mantissa;
  highest_ = high.mantissa;
  decimals_ = decimals;
  return true;
}

std::vector<int64_t> LogBuilder::first_times(size_t count) const {
  if (chunks_.empty()) return {};
  const std::vector<int64_t>& times = chunks_.front().time;
  return {times.begin(), times.begin() + static_cast<std::ptrdiff_t>(std::min(count, times.size()))};
}

Interactions LogBuilder::group() {
  Interactions log;
  log.offsets.assign(static_cast<size_t>(users.size()) + 1, 0);
  for (const Chunk& each : chunks_)
    for (const int32_t user : each.user) ++log.offsets[static_cast<size_t>(user) + 1];
  for (size_t u = 1; u < log.offsets.size(); ++u) log.offsets[u] += log.offsets[u - 1];
  log.item.resize(static_cast<size_t>(size_));
  if (timed_) log.time.resize(static_cast<size_t>(size_));
  std::vector<int64_t> next(log.offsets.begin(), log.offsets.end() - 1);
  for (; !chunks_.empty(); chunks_.pop_front()) {  // frees as it goes
    const Chunk& each = chunks_.front();
    for (size_t i = 0; i < each.user.size(); ++i) {
      const auto at = static_cast<size_t>(next[static_cast<size_t>(each.user[i])]++);
      log.item[at] = each.item[i];
      if (timed_) log.time[at] = each.time[i];
    }
  }
  log.time_decimals = decimals_;
  log.users = std::move(users);
  log.items = std::move(items);
  return log;
}

}  // namespace prism
