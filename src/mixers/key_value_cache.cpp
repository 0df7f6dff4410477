#include "mixers/key_value_cache.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "prism/ops/attention.h"

namespace prism {
namespace {

std::vector<int64_t> new_tokens(const at::Tensor& x, const Packing& packing) {
  std::vector<int64_t> counts(packing.sequences(x), x.size(1));
  for (size_t n = 0; packing.is_packed() && n < counts.size(); ++n)
    counts[n] = packing.offsets()[n + 1] - packing.offsets()[n];
  return counts;
}

/// Indices of the tokens in a [sequences, capacity] grid where sequence n starts at first[n].
at::Tensor grid_index(const std::vector<int64_t>& counts, const std::vector<int64_t>& first, int64_t capacity,
                      at::Device device) {
  std::vector<int64_t> index;
  for (size_t n = 0; n < counts.size(); ++n)
    for (int64_t t = 0; t < counts[n]; ++t)
      index.push_back(static_cast<int64_t>(n) * capacity + first[n] + t);
  return at::tensor(index, at::kLong).to(device);
}

at::Tensor flat(const at::Tensor& grid) { return grid.flatten(0, 1); }

/// Zeros [sequences, columns, ...] with the trailing shape of x.
at::Tensor empty_grid(int64_t sequences, int64_t columns, const at::Tensor& x) {
  auto shape = x.sizes().vec();
  shape[0] = sequences, shape[1] = columns;
  return at::zeros(shape, x.options().requires_grad(false));
}

}  // namespace

at::Tensor token_positions(const at::Tensor& x, const Packing& packing, const std::vector<int64_t>& lengths) {
  if (!packing.is_packed() && lengths.empty())  // made where they are used: nothing waits for a copy
    return at::arange(x.size(1), x.options().dtype(at::kLong)).expand({x.size(0), x.size(1)});
  const auto counts = new_tokens(x, packing);
  std::vector<int64_t> positions;
  positions.reserve(x.size(0) * x.size(1));
  for (size_t n = 0; n < counts.size(); ++n)
    for (int64_t t = 0; t < counts[n]; ++t) positions.push_back((lengths.empty() ? 0 : lengths[n]) + t);
  return at::tensor(positions, at::kLong).view({x.size(0), x.size(1)}).to(x.device());
}

TokenGrid::TokenGrid(const at::Tensor& x, const Packing& packing, const MixerState* state)
    : shape_{x.size(0), x.size(1)} {
  const auto counts = new_tokens(x, packing);
  const std::vector<int64_t> none(counts.size(), 0);
  past_ = state && !state->lengths.empty() ? state->lengths : none;
  for (size_t n = 0; n < counts.size(); ++n) {
    lengths_.push_back(past_[n] + counts[n]);
    longest_ = std::max(longest_, counts[n]);
    most_ = std::max(most_, lengths_[n]);
  }
  capacity_ = most_;
  if (state)
    for (const auto& [name, cache] : state->tensors) capacity_ = std::max(capacity_, cache.size(1));
  query_places_ = grid_index(counts, none, longest_, x.device());
  key_places_ = grid_index(counts, past_, capacity_, x.device());
}

bool TokenGrid::is_start() const {
  return std::all_of(past_.begin(), past_.end(), [](int64_t seen) { return seen == 0; });
}

at::Tensor TokenGrid::queries(const at::Tensor& x) const {
  const at::Tensor grid = empty_grid(sequences(), longest_, x);
  return flat(grid).index_copy(0, query_places_, flat(x)).view(grid.sizes());
}

at::Tensor TokenGrid::tokens(const at::Tensor& grid) const {
  auto shape = grid.sizes().vec();
  shape[0] = shape_[0], shape[1] = shape_[1];
  return flat(grid).index_select(0, query_places_).view(shape);
}

at::Tensor TokenGrid::extended(const at::Tensor& cache, const at::Tensor& x) const {
  at::Tensor grid = empty_grid(sequences(), capacity_, x);
  if (cache.defined()) grid.narrow(1, 0, cache.size(1)).copy_(cache);
  return flat(grid).index_copy(0, key_places_, flat(x)).view(grid.sizes());
}

at::Tensor TokenGrid::appended(const at::Tensor& cache, const at::Tensor& x) const {
  if (!cache.defined() || at::GradMode::is_enabled()) return extended(cache, x);
  constexpr int64_t kFewColumns = 64;
  at::Tensor grid = cache;
  if (cache.size(1) < most_ || !cache.is_contiguous() || cache.scalar_type() != x.scalar_type()) {
    grid = empty_grid(sequences(), most_ + std::max(most_ / 4, kFewColumns), x);
    grid.narrow(1, 0, cache.size(1)).copy_(cache);
  }
  std::vector<int64_t> counts(lengths_);
  for (size_t n = 0; n < counts.size(); ++n) counts[n] -= past_[n];
  flat(grid).index_copy_(0, grid_index(counts, past_, grid.size(1), x.device()), flat(x));
  return grid;
}

at::Tensor TokenGrid::used(const at::Tensor& cache) const { return cache.narrow(1, 0, most_); }

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const Packing& packing, MixerState* state) {
  if (!state) return causal_attention(q, k, v, scale, packing);
  const TokenGrid grid(q, packing, state);
  for (const auto& [name, x] : {std::pair{"k", k}, std::pair{"v", v}}) {
    at::Tensor& cache = state->tensors[name];
    cache = grid.appended(cache, x);
  }
  if (grid.is_start()) return causal_attention(q, k, v, scale, packing);
  return grid.tokens(cached_attention(grid.queries(q), grid.used(state->tensors["k"]),
                                      grid.used(state->tensors["v"]), scale, grid.past()));
}

}  // namespace prism
