#include "cuda_graph.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace prism {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// Memory that only one graph uses; it goes back when the graph does.
class GraphMemory {
 public:
  explicit GraphMemory(c10::DeviceIndex device) : device_(device), id_{0, next_id()} {}
  ~GraphMemory() {
    if (used_) allocator::releasePool(device_, id_);
  }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  /// All allocations of the device until end(): backward passes run on threads of their own.
  void begin() {
    allocator::beginAllocateToPool(device_, id_, [](cudaStream_t) { return true; });
    used_ = true;
  }
  void end() { allocator::endAllocateToPool(device_, id_); }

 private:
  static c10::CaptureId_t next_id() {  // an id is not used twice
    static c10::CaptureId_t last = 0;
    return ++last;
  }
  c10::DeviceIndex device_;
  c10::MempoolId_t id_;
  bool used_ = false;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::cuda::CUDAStream stream) : memory_(stream.device_index()) {}
  ~CudaGraph() override {
    if (!runnable_) return;
    C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());  // a replay may still read what is given back
    C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(runnable_));
  }

  void record(c10::cuda::CUDAStream stream, const std::function<void()>& work) {
    allocator::emptyCache();  // the graph takes fresh memory: blocks that lie idle would be held twice
    memory_.begin();
    cudaGraph_t graph = nullptr;
    try {
      C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
      work();
      C10_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    } catch (...) {
      memory_.end();
      abandon(stream);
      throw;
    }
    memory_.end();
    const cudaError_t status = cudaGraphInstantiate(&runnable_, graph, 0);
    C10_CUDA_CHECK_WARN(cudaGraphDestroy(graph));
    C10_CUDA_CHECK(status);
  }

  void replay() override { C10_CUDA_CHECK(cudaGraphLaunch(runnable_, c10::cuda::getCurrentCUDAStream())); }

 private:
  /// Ends a capture that failed, so that the stream runs what comes next.
  static void abandon(c10::cuda::CUDAStream stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t partial = nullptr;
      if (cudaStreamEndCapture(stream, &partial) == cudaSuccess) cudaGraphDestroy(partial);
    }
    cudaGetLastError();  // the error is reported by the exception
  }

  GraphMemory memory_;
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceGraph> record_cuda_graph(const std::function<void()>& work) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  auto graph = std::make_unique<CudaGraph>(stream);
  graph->record(stream, work);
  return graph;
}

}  // namespace prism
