#pragma once
#include "prism/ops/device_graph.h"

namespace prism {

/// record_device_graph by CUDA's stream capture.
std::unique_ptr<DeviceGraph> record_cuda_graph(const std::function<void()>& work);

}  // namespace prism
