#include "cuda/device.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "prism/core/error.h"
#include "prism/ops/device.h"
#include "prism/ops/device_graph.h"

namespace prism::test {

using at::Tensor;

const std::string& why_no_gpu() {
  static const std::string reason = [] {
    try {
      require_device("cuda");
      return std::string();
    } catch (const std::exception& problem) {
      return std::string(problem.what());
    }
  }();
  return reason;
}

void Cuda::TearDown() {
  if (!why_no_gpu().empty()) return;
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  c10::cuda::CUDACachingAllocator::emptyCache();
}

PoisonedMemory::PoisonedMemory() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
}
PoisonedMemory::~PoisonedMemory() { at::globalContext().setDeterministicAlgorithms(false, false); }

ChunkTensors on_gpu(const ChunkTensors& x) {
  return {on_gpu(x.q),
          on_gpu(x.k),
          on_gpu(x.w),
          on_gpu(x.b),
          on_gpu(x.g),
          on_gpu(x.erase_read),
          on_gpu(x.initial_state),
          x.cu_seqlens,
          on_gpu(x.up_o),
          on_gpu(x.up_final_state)};
}

Tensors replayed(const std::function<Tensors()>& work, const std::function<void()>& before) {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  work();  // modules load at the first launch
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  Tensors outputs;
  const auto graph = record_device_graph([&] { outputs = work(); });
  before();
  graph->replay();
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  for (Tensor& x : outputs)
    if (x.defined()) x = x.clone();
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return outputs;
}

}  // namespace prism::test
