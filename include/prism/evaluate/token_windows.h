#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <vector>

#include "prism/ops/packing.h"
#include "prism/text/token_files.h"

namespace prism {

/// `count` inputs from token `first` on, each with the token after it as its target.
struct TokenWindow {
  int64_t first = 0, count = 0;
};

/// Windows one after the other, as a language model reads them.
struct TokenBatch {
  at::Tensor tokens;   ///< int64 [1,N]; [B,T] for B windows of T without a document's border inside
  at::Tensor targets;  ///< int64 [N], N = B T
  Packing packing;     ///< a window starts anew at its beginning and at every document in it
};

/// Every window and the token behind it must lie in the dataset.
TokenBatch make_token_batch(const TokenDataset& dataset, std::span<const TokenWindow> windows,
                            c10::Device device);

/// Part `part` of `parts` of a batch, along its tokens: for sequences that are cut over processes
/// (distributed/sequence_parts.h). Rows are cut each at one place; packed windows are one row. On the CPU.
TokenBatch part_of(const TokenBatch& batch, int64_t part, int64_t parts);

/// Whole windows of `length` inputs in tokens [begin, end) of a dataset, side by side; a rest that is too
/// short is left out.
class TokenWindows {
 public:
  /// `dataset` must outlive it. Error where there is no whole window.
  TokenWindows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t length);

  int64_t size() const { return size_; }
  int64_t length() const { return length_; }
  TokenWindow at(int64_t index) const { return {begin_ + index * length_, length_}; }
  const TokenDataset& dataset() const { return *dataset_; }

 private:
  const TokenDataset* dataset_;
  int64_t begin_, length_, size_;
};

}  // namespace prism
