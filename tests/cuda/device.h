#pragma once
// What every test on a GPU shares. Without one each test is skipped and says why.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu_shapes.h"
#include "ops/chunk_cases.h"

namespace prism::test {

/// Why no test can run here, or "".
const std::string& why_no_gpu();

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) GTEST_SKIP() << "skipped: " << why_no_gpu();
  }
  void TearDown() override;
};

/// While it lives, every tensor that at::empty makes is full of NaN: an output element that nobody wrote
/// shows, and so does a kernel that reads what it should have written first.
class PoisonedMemory {
 public:
  PoisonedMemory();
  ~PoisonedMemory();
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;
};

inline at::Tensor on_gpu(const at::Tensor& x) { return x.defined() ? x.detach().to(at::kCUDA) : x; }
ChunkTensors on_gpu(const ChunkTensors& x);
/// A problem drawn on the GPU, for sizes that would take long on the CPU.
inline ChunkTensors as_case(const gpu::Problem& p) {
  return {p.q, p.k, p.w, p.b, p.g, {}, p.initial_state, p.cu_seqlens, p.d_o, p.d_final_state};
}

using Tensors = std::vector<at::Tensor>;
/// What `work` returns when a CUDA graph of it is replayed; `before` runs right before the replay.
Tensors replayed(
    const std::function<Tensors()>& work, const std::function<void()>& before = [] {});

}  // namespace prism::test
