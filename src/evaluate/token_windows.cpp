#include "prism/evaluate/token_windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

/// Lengths of the sequences in tokens [begin, end) of a packed row. The first one goes on from the part
/// before: where a sequence starts at `begin`, that is an empty one.
std::vector<int64_t> lengths_between(const std::vector<int64_t>& offsets, int64_t begin, int64_t end) {
  std::vector<int64_t> lengths;
  int64_t from = begin;
  for (size_t n = 1; n + 1 < offsets.size(); ++n) {
    if (offsets[n] < std::max<int64_t>(begin, 1) || offsets[n] >= end) continue;
    lengths.push_back(offsets[n] - from);
    from = offsets[n];
  }
  lengths.push_back(end - from);
  return lengths;
}

}  // namespace

TokenBatch make_token_batch(const TokenDataset& dataset, std::span<const TokenWindow> windows,
                            c10::Device device) {
  int64_t total = 0;
  for (const TokenWindow& window : windows) total += window.count;
  const at::Tensor tokens = at::empty({1, total}, at::kLong), targets = at::empty({total}, at::kLong);
  auto* token = tokens.mutable_data_ptr<int64_t>();
  auto* target = targets.mutable_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (const TokenWindow& window : windows) {
    dataset.copy(window.first, window.count, token);
    dataset.copy(window.first + 1, window.count, target);
    token += window.count, target += window.count;
    int64_t begin = window.first;
    for (const int64_t start : dataset.document_starts(window.first + 1, window.count - 1)) {
      lengths.push_back(start - begin);
      begin = start;
    }
    lengths.push_back(window.first + window.count - begin);
  }
  const bool rows = lengths.size() == windows.size() && !lengths.empty() &&
                    std::all_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n == lengths[0]; });
  return {.tokens = (rows ? tokens.view({-1, lengths[0]}) : tokens).to(device),
          .targets = targets.to(device),
          .packing = rows ? Packing::rows() : Packing::packed(lengths)};
}

TokenBatch part_of(const TokenBatch& batch, int64_t part, int64_t parts) {
  const int64_t tokens = batch.tokens.size(1);
  const int64_t begin = tokens * part / parts, end = tokens * (part + 1) / parts;
  const auto own = [&](const at::Tensor& x) { return x.narrow(1, begin, end - begin).contiguous(); };
  return {.tokens = own(batch.tokens),
          .targets = own(batch.targets.view_as(batch.tokens)).flatten(),
          .packing = batch.packing.is_packed()
                         ? Packing::packed(lengths_between(batch.packing.offsets(), begin, end))
                         : batch.packing};
}

TokenWindows::TokenWindows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t length)
    : dataset_(&dataset), begin_(begin), length_(length), size_((end - begin - 1) / length) {
  check(size_ >= 1, "{}: tokens {} to {} hold no window of {} and its target; lower --length",
        dataset.folder().string(), with_commas(begin), with_commas(end), with_commas(length));
}

}  // namespace prism
