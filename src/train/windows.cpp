#include "prism/train/windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "prism/core/random.h"

namespace prism {
namespace {

/// Whole seconds between interaction `position` of a user and the one before it; 0 for the first.
int64_t gap_before(std::span<const int64_t> times, int64_t position, int64_t ticks_per_second) {
  if (position == 0) return 0;
  const auto i = static_cast<size_t>(position);
  return (times[i] - times[i - 1]) / ticks_per_second;
}

int64_t power_of_ten(int32_t exponent) { return std::llround(std::pow(10.0, exponent)); }

}  // namespace

void cut_history(int32_t user, int64_t items, int64_t max_length, std::vector<Window>& windows) {
  const int64_t inputs = items - 1;
  if (inputs < 1) return;
  const int64_t remainder = inputs % max_length;
  if (remainder > 0) windows.push_back({user, 0, static_cast<int32_t>(remainder)});
  for (int64_t begin = remainder; begin < inputs; begin += max_length)
    windows.push_back({user, static_cast<int32_t>(begin), static_cast<int32_t>(max_length)});
}

std::vector<Window> cut_windows(const Split& split, int64_t users, int64_t max_length) {
  std::vector<Window> windows;
  for (int64_t user = 0; user < users; ++user)
    cut_history(static_cast<int32_t>(user), static_cast<int64_t>(split.train(user).size()), max_length,
                windows);
  return windows;
}

std::vector<Window> shuffled_windows(std::vector<Window> windows, uint64_t seed, int64_t epoch) {
  RandomStream(seed, "shuffle", static_cast<uint64_t>(epoch)).shuffle(std::span(windows));
  return windows;
}

TrainBatch make_batch(const Interactions& log, const Split& split, std::span<const Window> windows, bool gaps,
                      c10::Device device) {
  std::vector<int64_t> lengths;
  int64_t positions = 0;
  for (const Window& window : windows) lengths.push_back(window.length), positions += window.length;
  const at::Tensor items = at::empty({positions}, at::kLong), targets = at::empty({positions}, at::kLong);
  const at::Tensor gap = gaps ? at::empty({positions}, at::kLong) : at::Tensor();
  auto* item = items.mutable_data_ptr<int64_t>();
  auto* target = targets.mutable_data_ptr<int64_t>();
  auto* seconds = gaps ? gap.mutable_data_ptr<int64_t>() : nullptr;
  const int64_t ticks = power_of_ten(log.time_decimals);
  for (const Window& window : windows) {
    const auto history = split.train(window.user).subspan(static_cast<size_t>(window.begin));
    const auto count = static_cast<size_t>(window.length);
    item = std::copy_n(history.begin(), count, item);
    target = std::copy_n(history.begin() + 1, count, target);
    for (int64_t i = 0; gaps && i < window.length; ++i)
      *seconds++ = gap_before(log.times(window.user), window.begin + i, ticks);
  }
  return {.inputs = {.items = items.to(device),
                     .gaps = gaps ? gap.to(device) : gap,
                     .packing = Packing::packed(lengths)},
          .targets = targets.to(device)};
}

}  // namespace prism
