#pragma once
#include <functional>
#include <memory>

namespace prism {

/// Work of a GPU that was recorded once and is launched as a whole, without the host's share of it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Enqueues the recorded work on the current stream: the same kernels on the same addresses.
  virtual void replay() = 0;
};

/// Calls `work` once while the current stream, which must not be the default one, records what is enqueued on
/// it instead of running it. Memory that the work takes stays the graph's: tensors that it makes and that
/// outlive it keep their addresses and take new values with every replay. Error where the work waits for the
/// device, copies from pageable memory, or runs out of memory; nothing of it has run then. Needs
/// libprism_cuda.so.
std::unique_ptr<DeviceGraph> record_device_graph(const std::function<void()>& work);

}  // namespace prism
