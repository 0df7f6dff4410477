#include "gpu_stopwatch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "prism/ops/device_graph.h"

namespace prism::gpu {
namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

}  // namespace

Stopwatch::Stopwatch(double seconds) : seconds_(seconds) {
  C10_CUDA_CHECK(cudaEventCreate(&start_));
  C10_CUDA_CHECK(cudaEventCreate(&stop_));
  flush_ = at::empty({256 << 20}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

Stopwatch::~Stopwatch() {
  cudaEventDestroy(start_);
  cudaEventDestroy(stop_);
}

double Stopwatch::median(const Action& action, bool idle) {
  action();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 7 || (total < 1e3 * seconds_ && times.size() < 60)) {
    flush_.zero_();
    if (idle) C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
    C10_CUDA_CHECK(cudaEventRecord(start_, stream()));
    action();
    C10_CUDA_CHECK(cudaEventRecord(stop_, stream()));
    C10_CUDA_CHECK(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    times.push_back(milliseconds);
    total += milliseconds;
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

double Stopwatch::kernels(const Action& action) {
  action();
  C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
  const auto graph = record_device_graph(action);
  return call([&] { graph->replay(); });
}

}  // namespace prism::gpu
