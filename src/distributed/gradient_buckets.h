#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "prism/distributed/ranks.h"

namespace prism {

/// Sums the gradients of parameters over ranks while backward is still at work: they are copied into buckets
/// of some MiB, last parameters first, and a bucket leaves as soon as all of its gradients are there. Buckets
/// leave in one order on every rank, which c10d wants.
class GradientBuckets {
 public:
  static constexpr int64_t kBucketBytes = int64_t{25} << 20;

  /// `parameters`: leaves, the same on all ranks. `ranks` must outlive the buckets.
  GradientBuckets(std::vector<at::Tensor> parameters, Ranks& ranks, int64_t bucket_bytes = kBucketBytes);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// The next backward is the last one before finish(); earlier ones of a step add up in the gradients.
  void arm();
  /// Every gradient becomes the sum over ranks. One that no rank has stays undefined; on a rank without it,
  /// also where no backward ran, it counts as zero. The gradients are views of the buckets until the next
  /// arm().
  void finish();

  int64_t count() const { return static_cast<int64_t>(buckets_.size()); }
  /// Buckets that have left since arm().
  int64_t sent() const { return static_cast<int64_t>(next_); }

 private:
  struct Bucket {
    std::vector<size_t> members;  // of parameters_
    at::Tensor flat;
    size_t missing = 0;
    std::function<void()> arrived = {};
  };
  struct Place {
    size_t bucket;
    at::Tensor view;  // of the bucket, in the parameter's shape
    bool taken = false, present = false;
  };
  class Hook;

  size_t add_bucket(size_t end, int64_t bucket_bytes);
  void take(size_t parameter);
  void send_full();
  at::Tensor present_anywhere() const;

  std::vector<at::Tensor> parameters_;
  Ranks& ranks_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  // autograd holds them weakly
  std::vector<uintptr_t> hooks_;
  bool armed_ = false;
  size_t next_ = 0;  // the bucket that leaves next
};

}  // namespace prism
