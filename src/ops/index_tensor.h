#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace prism {

/// The values as an int64 tensor on a device.
inline at::Tensor index_tensor(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kLong));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<int64_t>());
  return host.to(device);
}

}  // namespace prism
