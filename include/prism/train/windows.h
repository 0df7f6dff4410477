#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "prism/data/interactions.h"
#include "prism/data/split.h"
#include "prism/models/recommender.h"

namespace prism {

/// A stretch of one user's training items: inputs train(user)[begin, begin + length), each with the item
/// after it as its target.
struct Window {
  int32_t user = 0, begin = 0, length = 0;
  bool operator==(const Window&) const = default;
};

/// Cuts `items` items into windows of at most `max_length` inputs, from the end: every item but the first is
/// a target once, and only the first window may be short. Appends to `windows`.
void cut_history(int32_t user, int64_t items, int64_t max_length, std::vector<Window>& windows);

/// The windows of all users' training items, in the order of users.
std::vector<Window> cut_windows(const Split& split, int64_t users, int64_t max_length);

/// Shuffles windows for an epoch: a function of (seed, epoch) and the order of `windows` alone.
std::vector<Window> shuffled_windows(std::vector<Window> windows, uint64_t seed, int64_t epoch);

/// Inputs and targets of a training step, packed without padding.
struct TrainBatch {
  Batch inputs;
  at::Tensor targets;  ///< int64 [N]
};

/// Makes the batch of `windows` on `device`; with time gaps when `gaps` (the log must have times).
TrainBatch make_batch(const Interactions& log, const Split& split, std::span<const Window> windows, bool gaps,
                      c10::Device device);

}  // namespace prism
