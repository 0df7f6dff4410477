#include "mixers/key_value_cache.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

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

/// The cache with room for `capacity` tokens a sequence.
at::Tensor grown(const at::Tensor& cache, int64_t sequences, int64_t capacity, const at::Tensor& x) {
  if (!cache.defined()) return at::zeros({sequences, capacity, x.size(2), x.size(3)}, x.options());
  if (cache.size(1) >= capacity) return cache;
  return at::constant_pad_nd(cache, {0, 0, 0, 0, 0, capacity - cache.size(1)});
}

at::Tensor flat(const at::Tensor& grid) { return grid.flatten(0, 1); }

}  // namespace

at::Tensor token_positions(const at::Tensor& x, const Packing& packing, const std::vector<int64_t>& lengths) {
  const auto counts = new_tokens(x, packing);
  std::vector<int64_t> positions;
  positions.reserve(x.size(0) * x.size(1));
  for (size_t n = 0; n < counts.size(); ++n)
    for (int64_t t = 0; t < counts[n]; ++t) positions.push_back((lengths.empty() ? 0 : lengths[n]) + t);
  return at::tensor(positions, at::kLong).view({x.size(0), x.size(1)}).to(x.device());
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const Packing& packing, MixerState* state) {
  if (!state) return causal_attention(q, k, v, scale, packing);
  const auto counts = new_tokens(q, packing);
  const auto past = state->lengths.empty() ? std::vector<int64_t>(counts.size(), 0) : state->lengths;
  int64_t capacity = state->tensors["k"].defined() ? state->tensors["k"].size(1) : 0, longest = 0;
  for (size_t n = 0; n < counts.size(); ++n) {
    capacity = std::max(capacity, past[n] + counts[n]);
    longest = std::max(longest, counts[n]);
  }
  const auto sequences = static_cast<int64_t>(counts.size());
  const at::Tensor places = grid_index(counts, past, capacity, q.device());
  for (const auto& [name, x] : {std::pair{"k", k}, std::pair{"v", v}}) {
    at::Tensor& cache = state->tensors[name];
    cache = flat(grown(cache, sequences, capacity, x))
                .index_copy(0, places, flat(x))
                .view({sequences, capacity, x.size(2), x.size(3)});
  }
  if (std::all_of(past.begin(), past.end(), [](int64_t seen) { return seen == 0; }))
    return causal_attention(q, k, v, scale, packing);
  const at::Tensor tokens = grid_index(counts, std::vector<int64_t>(counts.size(), 0), longest, q.device());
  const at::Tensor q_grid = at::zeros({sequences * longest, q.size(2), q.size(3)}, q.options())
                                .index_copy(0, tokens, flat(q))
                                .view({sequences, longest, q.size(2), q.size(3)});
  const at::Tensor o = cached_attention(q_grid, state->tensors["k"], state->tensors["v"], scale, past);
  return flat(o).index_select(0, tokens).view({q.size(0), q.size(1), o.size(2), o.size(3)});
}

}  // namespace prism
