#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace prism {

/// Which tokens of an activation belong to one sequence. Either every row of [B,T,...] is a sequence, or the
/// activation is [1,N,...] and holds sequences one after the other (no padding). Offsets live on the host;
/// devices get a copy when they first need one.
class Packing {
 public:
  /// Every row of the batch is one sequence.
  static Packing rows() { return Packing(); }
  /// Sequences of these lengths (0 and 1 included), packed into one row.
  static Packing packed(const std::vector<int64_t>& lengths);

  bool is_packed() const { return !offsets_.empty(); }
  /// Packed only: [sequences + 1], offsets()[0] = 0.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Sequences of an activation x [B,T,...]: B rows, or the number of packed sequences.
  int64_t sequences(const at::Tensor& x) const;
  int64_t max_length(const at::Tensor& x) const;
  /// Packed only: int64 [sequences + 1] on the CPU, as the ops take it; undefined tensor for rows.
  const at::Tensor& cu_seqlens() const { return cu_seqlens_; }
  /// Packed only: the same on a device. Made at the first call for it, in order on the current stream and
  /// without waiting, and shared by all copies of this object; work on other streams must be ordered after
  /// that first call. Make that call before a CUDA graph is captured.
  at::Tensor cu_seqlens_on(c10::Device device) const;

 private:
  struct OnDevices;

  std::vector<int64_t> offsets_;
  at::Tensor cu_seqlens_;
  std::shared_ptr<OnDevices> on_devices_;
};

}  // namespace prism
