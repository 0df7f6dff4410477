// The operations on a GPU beside what issue 4 asks for: ./run bench gpu [--only TEXT] [--parts LIST] [--json
// FILE]
//
// One process. Every figure is the median over repeats with a flushed L2 cache: "call" from CUDA events
// around the call of the torch operator while the card is busy with the flush; "idle" the same on a card that
// waits, so that the host's part before the first kernel counts; "kernels" from events around a replayed CUDA
// graph of the call. Results are checked against the fp64 operation on one head before anything is
// timed; what is off is named, not timed, and makes the exit status 1. Copy speed, a bf16 product and causal
// attention are measured in the same run. Prints Markdown.
#include "gpu_bench.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "prism/core/files.h"
#include "prism/ops/device.h"

namespace prism::gpu {

void bench_machine(Bench& bench) {
  const auto bf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor from = at::randn({int64_t{1} << 30}, bf16), to = at::empty_like(from);
  const at::Tensor a = at::randn({8192, 8192}, bf16), b = at::randn({8192, 8192}, bf16);
  at::Tensor c = at::empty({8192, 8192}, bf16);
  bench.copy = 4e-9 * double(from.numel()) / bench.watch.call([&] { to.copy_(from); });
  const double gemm = 2e-9 * std::pow(8192.0, 3) / bench.watch.call([&] { at::mm_out(c, a, b); });
  print_row("Copy {:.2f} TB/s, bf16 product of 8192 {:.0f} TFLOP/s.\n", bench.copy, gemm);
  bench.json["copy_tb_s"] = bench.copy;
  bench.json["gemm_tflop_s"] = gemm;
}

namespace {

int run(int argc, char** argv) {
  CLI::App app("The operations on a GPU, beside their bars", "bench_gpu");
  std::string only, json;
  std::vector<std::string> parts = {"chunk", "attention", "step", "refine"};
  double seconds = 0.1;
  app.add_option("--only", only, "shapes whose name contains this text");
  app.add_option("--parts", parts, "chunk, attention, step, refine")->delimiter(',')->capture_default_str();
  app.add_option("--seconds", seconds, "measured time a figure")->capture_default_str();
  app.add_option("--json", json, "write the figures to this file as well");
  CLI11_PARSE(app, argc, argv);
  require_device("cuda");
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  Bench bench{Stopwatch(seconds), only};
  bench_machine(bench);
  const auto has = [&](const char* part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  if (has("chunk")) bench_chunk(bench);
  if (has("attention")) bench_attention(bench);
  if (has("step")) bench_step(bench);
  if (has("refine")) bench_refine(bench);
  if (!json.empty()) write_file(json, bench.json.dump(1) + "\n");
  return bench.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace prism::gpu

int main(int argc, char** argv) try {
  return prism::gpu::run(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_gpu: %s\n", error.what());
  return 1;
}
