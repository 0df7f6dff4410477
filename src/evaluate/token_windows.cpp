#include "prism/evaluate/token_windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {

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

TokenWindows::TokenWindows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t length)
    : dataset_(&dataset), begin_(begin), length_(length), size_((end - begin - 1) / length) {
  check(size_ >= 1, "{}: tokens {} to {} hold no window of {} and its target; lower --length",
        dataset.folder().string(), with_commas(begin), with_commas(end), with_commas(length));
}

}  // namespace prism
