#include "prism/ops/packing.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>

#include "prism/core/error.h"

namespace prism {

struct Packing::OnDevices {
  std::mutex mutex;
  std::vector<at::Tensor> offsets;  ///< one a device
};

Packing Packing::packed(const std::vector<int64_t>& lengths) {
  Packing packing;
  packing.offsets_.reserve(lengths.size() + 1);
  packing.offsets_.push_back(0);
  for (const int64_t length : lengths) {
    check(length >= 0, "packing: a sequence has {} tokens", length);
    packing.offsets_.push_back(packing.offsets_.back() + length);
  }
  packing.cu_seqlens_ = at::empty({int64_t(packing.offsets_.size())}, at::TensorOptions(at::kLong));
  std::copy(packing.offsets_.begin(), packing.offsets_.end(),
            packing.cu_seqlens_.mutable_data_ptr<int64_t>());
  packing.on_devices_ = std::make_shared<OnDevices>();
  return packing;
}

at::Tensor Packing::cu_seqlens_on(c10::Device device) const {
  check(is_packed(), "packing: rows have no offsets");
  if (device == cu_seqlens_.device()) return cu_seqlens_;
  const std::lock_guard lock(on_devices_->mutex);
  for (const at::Tensor& copy : on_devices_->offsets)
    if (copy.device() == device) return copy;
  const at::Tensor from = device.is_cuda() ? cu_seqlens_.pin_memory() : cu_seqlens_;
  return on_devices_->offsets.emplace_back(from.to(device, at::kLong, /*non_blocking=*/true));
}

int64_t Packing::sequences(const at::Tensor& x) const {
  return is_packed() ? int64_t(offsets_.size()) - 1 : x.size(0);
}

int64_t Packing::max_length(const at::Tensor& x) const {
  if (!is_packed()) return x.size(1);
  int64_t longest = 0;
  for (size_t n = 1; n < offsets_.size(); ++n) longest = std::max(longest, offsets_[n] - offsets_[n - 1]);
  return longest;
}

}  // namespace prism
