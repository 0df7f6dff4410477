// The operations on a GPU beside what issue 4 asks for: ./run bench gpu [--only TEXT] [--json FILE]
//
// One process. Every figure is the median over repeats with a flushed L2 cache: "call" from CUDA events
// around the call of the torch operator, launch costs included; "kernels" from events around a replayed CUDA
// graph of the same call. Results are checked against the fp64 operation on one head before anything is
// timed. Copy speed, a bf16 product and causal attention are measured in the same run. Prints Markdown.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "gpu_shapes.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/ops/device.h"
#include "prism/ops/prism_refine.h"

namespace prism::gpu {
namespace {

using at::Tensor;
using Action = std::function<void()>;
namespace allocator = c10::cuda::CUDACachingAllocator;

/// Medians of an action's time on one stream.
class Stopwatch {
 public:
  explicit Stopwatch(double seconds) : seconds_(seconds) {
    C10_CUDA_CHECK(cudaEventCreate(&start_));
    C10_CUDA_CHECK(cudaEventCreate(&stop_));
    flush_ = at::empty({256 << 20}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds between events around the call.
  double call(const Action& action) {
    action();
    std::vector<double> times;
    double total = 0;
    while (times.size() < 7 || (total < 1e3 * seconds_ && times.size() < 60)) {
      flush_.zero_();
      C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
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

  /// Milliseconds of a replayed graph of the call: its kernels, without the host.
  double kernels(const Action& action) {
    const c10::MempoolId_t pool = {1, 0};
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    action();
    C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
    allocator::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed));
    action();
    C10_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
    allocator::endAllocateToPool(0, pool);
    C10_CUDA_CHECK(cudaGraphInstantiate(&runnable, graph, 0));
    const double median = call([&] { C10_CUDA_CHECK(cudaGraphLaunch(runnable, stream())); });
    C10_CUDA_CHECK(cudaGraphExecDestroy(runnable));
    C10_CUDA_CHECK(cudaGraphDestroy(graph));
    allocator::releasePool(0, pool);
    return median;
  }

 private:
  static cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

  double seconds_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  Tensor flush_;
};

/// Forward and backward of a problem through the public operator.
struct Training {
  explicit Training(const Problem& p) : problem(p), leaves(p.leaves()) {
    for (Tensor& leaf : leaves) leaf.requires_grad_();
  }
  ~Training() {
    for (Tensor& leaf : leaves) leaf.requires_grad_(false);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  Tensor forward() const { return prism_chunk(problem.args()).o; }
  std::vector<Tensor> backward(const Tensor& o) const {
    return torch::autograd::grad({o}, leaves, {problem.d_o}, /*retain_graph=*/true);
  }

  Problem problem;
  std::vector<Tensor> leaves;
};

double relative_error(const Tensor& x, const Tensor& y) {
  const Tensor wide = y.to(at::kDouble);
  return ((x.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

/// The last head's outputs and gradients against the composed operation in fp64; the largest error as a share
/// of what prism.md's table allows for bf16.
double check_results(const Shape& s, const Problem& p) {
  std::vector<Tensor> found;
  {
    const Training training(p);
    const Tensor o = training.forward();
    found = training.backward(o);
    found.insert(found.begin(), o.detach());
  }
  const Problem part = one_head(p, s.Hk - 1);
  const auto wide = [](const Tensor& x) { return x.detach().to(at::kDouble).requires_grad_(); };
  const std::vector<Tensor> inputs = {wide(part.q), wide(part.k), wide(part.w), wide(part.b), wide(part.g)};
  PrismChunkArgs args{.q = inputs[0], .k = inputs[1], .w = inputs[2], .b = inputs[3], .g = inputs[4]};
  args.cu_seqlens = part.args().cu_seqlens;
  args.implementation = Implementation::kComposed;
  const Tensor o = prism_chunk(args).o;
  std::vector<Tensor> exact = torch::autograd::grad({o}, inputs, {part.d_o.to(at::kDouble)});
  exact.insert(exact.begin(), o.detach());
  const Problem of_head = one_head({.q = found[1],
                                    .k = found[2],
                                    .w = found[3],
                                    .b = found[4],
                                    .g = found[5],
                                    .initial_state = {},
                                    .cu_seqlens = {},
                                    .d_o = found[0],
                                    .d_final_state = {}},
                                   s.Hk - 1);
  const Tensor parts[] = {of_head.d_o, of_head.q, of_head.k, of_head.w, of_head.b, of_head.g};
  constexpr double kAllowed[] = {0.005, 0.008, 0.008, 0.008, 0.01, 0.01};
  double worst = 0;
  for (size_t i = 0; i < 6; ++i) {
    const double error = relative_error(parts[i], exact[i]);
    check(error <= kAllowed[i], "bench gpu: {}: tensor {} is off by {:.1e}, over {:.0e}", s.name, i, error,
          kAllowed[i]);
    worst = std::max(worst, error / kAllowed[i]);
  }
  return worst;
}

struct Machine {
  double copy = 0;  ///< TB/s, read and write counted
  double gemm = 0;  ///< TFLOP/s
};

Machine measure_machine(Stopwatch& watch) {
  const auto bf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const Tensor from = at::randn({int64_t{1} << 30}, bf16), to = at::empty_like(from);
  const Tensor a = at::randn({8192, 8192}, bf16), b = at::randn({8192, 8192}, bf16);
  Tensor c = at::empty({8192, 8192}, bf16);
  Machine machine;
  machine.copy = 4e-9 * double(from.numel()) / watch.call([&] { to.copy_(from); });
  machine.gemm = 2e-9 * std::pow(8192.0, 3) / watch.call([&] { at::mm_out(c, a, b); });
  return machine;
}

std::string against(double value, double bar) {
  return fmt::format("{:.3f} / {:.3g}{}", value, bar, value <= bar ? "" : " **over**");
}

class Report {
 public:
  Report(Stopwatch& watch, std::string only) : watch_(watch), only_(std::move(only)) {
    machine_ = measure_machine(watch_);
    fmt::print("Copy {:.2f} TB/s, bf16 product of 8192 {:.0f} TFLOP/s.\n", machine_.copy, machine_.gemm);
    json_["copy_tb_s"] = machine_.copy;
    json_["gemm_tflop_s"] = machine_.gemm;
  }

  void chunk();
  void attention();
  void decode();
  void refine();
  const nlohmann::json& json() const { return json_; }

 private:
  bool wanted(const std::string& name) const { return name.find(only_) != std::string::npos; }
  void chunk_row(const Shape& s, int64_t L);
  void decode_row(int64_t L, at::ScalarType state_type);
  void refine_row(int64_t L, at::ScalarType type);
  double share_of_copy(double bytes, double milliseconds) const {
    return 1e-9 * bytes / milliseconds / machine_.copy;
  }

  Stopwatch& watch_;
  std::string only_;
  Machine machine_;
  nlohmann::json json_;
};

void Report::chunk() {
  fmt::print(
      "\nprism_chunk, bf16, ms: call / bar (kernels). Memory: of a forward and a backward, outputs and "
      "gradients included. Worst error: share of the allowed.\n\n"
      "| B x T, key / value heads | L | forward, inference | forward, training | backward | byte floor | GiB "
      "| "
      "worst error |\n|---|---|---|---|---|---|---|---|\n");
  for (const Shape& s : shapes())
    for (const int64_t L : {1, 2})
      if (wanted(s.name)) chunk_row(s, L);
}

void Report::chunk_row(const Shape& s, int64_t L) {
  const Problem p = draw(s, L, /*states=*/false);
  const double error = check_results(s, p);
  allocator::emptyCache();
  const auto infer = [&] {
    const c10::NoGradGuard no_grad;
    prism_chunk(p.args());
  };
  const double forward = watch_.call(infer), forward_kernels = watch_.kernels(infer);
  const Training training(p);
  const int64_t before = allocator::getDeviceStats(0).allocated_bytes[0].current;
  allocator::resetPeakStats(0);
  training.backward(training.forward());
  const double gib = double(allocator::getDeviceStats(0).allocated_bytes[0].peak - before) / (1 << 30);
  const double train = watch_.call([&] { training.forward(); });
  const Tensor o = training.forward();
  const double backward = watch_.call([&] { training.backward(o); }),
               backward_kernels = watch_.kernels([&] { training.backward(o); });
  const double floor = 1e-9 * double(p.q.nbytes() + p.k.nbytes() + p.w.nbytes() + o.nbytes()) / machine_.copy;
  const Bars& bars = s.bars;
  fmt::print("| {} | {} | {} ({:.3f}) | {:.3f} | {} ({:.3f}) | {:.2f} | {:.2f} | {:.2f} |\n", s.name, L,
             against(forward, bars.forward[L - 1]), forward_kernels, train,
             against(backward, bars.backward[L - 1]), backward_kernels, floor, gib, error);
  std::fflush(stdout);
  json_["chunk"].push_back({{"shape", s.name},
                            {"steps", L},
                            {"forward_ms", forward},
                            {"forward_kernels_ms", forward_kernels},
                            {"forward_training_ms", train},
                            {"backward_ms", backward},
                            {"backward_kernels_ms", backward_kernels},
                            {"floor_ms", floor},
                            {"extra_gib", gib},
                            {"error_share", error}});
}

void Report::attention() {
  fmt::print(
      "\nCausal attention of LibTorch at the same shapes, bf16, ms.\n\n| shape | forward | backward |\n"
      "|---|---|---|\n");
  for (const Shape& s : shapes()) {
    if (!wanted(s.name) || s.Hk != s.H) continue;
    const int64_t rows = s.lengths.empty() ? s.B : static_cast<int64_t>(s.lengths.size()),
                  T = s.B * s.T / rows;
    const auto draw = [&] {
      return at::randn({rows, s.H, T, s.width}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    };
    const Tensor q = draw().requires_grad_(), k = draw().requires_grad_(), v = draw().requires_grad_(),
                 d_o = draw();
    const auto run = [&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true); };
    const double forward = watch_.call([&] {
      const c10::NoGradGuard no_grad;
      run();
    });
    const Tensor o = run();
    const double backward = watch_.call([&] {
      torch::autograd::grad({o}, {q, k, v}, {d_o}, /*retain_graph=*/true);
    });
    fmt::print("| {} | {:.3f} | {:.3f} |\n", s.name, forward, backward);
    std::fflush(stdout);
    json_["attention"].push_back({{"shape", s.name}, {"forward_ms", forward}, {"backward_ms", backward}});
  }
}

void Report::decode() {
  fmt::print(
      "\nprism_step, B = 1024, 16 heads, K = V = 128, bf16 operands; the bar is 0.9 of copy speed.\n\n"
      "| state | L | call, us | kernel, us | of copy speed |\n|---|---|---|---|---|\n");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t L : {1, 2}) decode_row(L, type);
}

void Report::decode_row(int64_t L, at::ScalarType state_type) {
  const c10::NoGradGuard no_grad;
  const int64_t B = 1024, H = 16, d = 128;
  const Problem p = draw({"decode", B, 1, H, H, d, {}}, L, /*states=*/true);
  const Tensor state = p.initial_state.to(state_type, false, true);
  const auto first = [](const Tensor& x) { return x.select(1, 0); };
  const auto step = [&](const Tensor& into) {
    return prism_step(first(p.q), first(p.k), first(p.w), first(p.b), first(p.g), into);
  };
  const auto part = [](const Tensor& x) { return x.narrow(0, B - 1, 1).to(at::kDouble); };
  PrismChunkArgs exact{.q = part(p.q), .k = part(p.k), .w = part(p.w), .b = part(p.b), .g = part(p.g)};
  exact.initial_state = part(state);
  exact.return_final_state = true;
  const PrismChunkResult expected = prism_chunk(exact);
  const double error = std::max(relative_error(part(step(state)), first(expected.o)),
                                relative_error(part(state), expected.final_state));
  check(error <= 0.005, "bench gpu: decode is off by {:.1e}", error);
  const double call = watch_.call([&] { step(state); }), kernel = watch_.kernels([&] { step(state); });
  const double bytes = 2.0 * state.nbytes() + 2 * p.q.nbytes() + p.k.nbytes() + p.w.nbytes() + p.b.nbytes() +
                       p.g.nbytes(),
               share = share_of_copy(bytes, kernel);
  fmt::print("| {} | {} | {:.0f} | {:.0f} | {:.3f}{} |\n", c10::toString(state_type), L, 1e3 * call,
             1e3 * kernel, share, share >= 0.9 ? "" : " **under 0.9**");
  std::fflush(stdout);
  json_["decode"].push_back({{"state", c10::toString(state_type)},
                             {"steps", L},
                             {"call_us", 1e3 * call},
                             {"kernel_us", 1e3 * kernel},
                             {"share_of_copy", share}});
}

void Report::refine() {
  fmt::print(
      "\nprism_refine, 32768 tokens, 64 heads, V = 128; the bar is 0.85 of copy speed for its bytes.\n\n"
      "| type | L | forward, ms | of copy speed | backward, ms | of copy speed |\n"
      "|---|---|---|---|---|---|\n");
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    for (const int64_t L : {1, 2, 4}) refine_row(L, type);
}

void Report::refine_row(int64_t L, at::ScalarType type) {
  const int64_t N = 32768, H = 64, V = 128;
  const auto options = at::TensorOptions(at::kCUDA).dtype(type);
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, options); };
  const Tensor v = normal({N, H, V}).requires_grad_(), u = normal({N, H, V}).requires_grad_(),
               p = normal({N, L, H, V}).requires_grad_(),
               beta = at::rand({N, L, H}, options.dtype(at::kFloat)).requires_grad_(),
               d_w = normal({N, L, H, V});
  const auto forward = [&] { return prism_refine(v, u, p, beta).w; };
  const Tensor w = forward();
  const auto part = [](const Tensor& x) { return x.detach().narrow(0, N - 8, 8).to(at::kDouble); };
  const Tensor exact = prism_refine(part(v), part(u), part(p), part(beta), Nonlinearity::kGelu,
                                    Residual::kSubtract, false, Implementation::kComposed)
                           .w;
  const double error = relative_error(part(w), exact), allowed = type == at::kFloat ? 1e-5 : 0.005;
  check(error <= allowed, "bench gpu: refine is off by {:.1e}", error);
  const double forward_ms = watch_.kernels([&] {
    const c10::NoGradGuard no_grad;
    forward();
  });
  const double backward_ms = watch_.kernels([&] {
    torch::autograd::grad({w}, {v, u, p, beta}, {d_w}, /*retain_graph=*/true);
  });
  const double number = double(v.nbytes()), gates = double(beta.nbytes()), steps = double(L);
  const double forward_share = share_of_copy(number * (2 + 2 * steps) + gates, forward_ms),
               backward_share = share_of_copy(number * (4 + 3 * steps) + 2 * gates, backward_ms);
  const auto cell = [](double share) {
    return fmt::format("{:.3f}{}", share, share >= 0.85 ? "" : " **under**");
  };
  fmt::print("| {} | {} | {:.3f} | {} | {:.3f} | {} |\n", c10::toString(type), L, forward_ms,
             cell(forward_share), backward_ms, cell(backward_share));
  std::fflush(stdout);
  json_["refine"].push_back({{"type", c10::toString(type)},
                             {"steps", L},
                             {"forward_ms", forward_ms},
                             {"backward_ms", backward_ms},
                             {"forward_share", forward_share},
                             {"backward_share", backward_share}});
}

int run(int argc, char** argv) {
  CLI::App app("The operations on a GPU, beside their bars", "bench_gpu");
  std::string only, json;
  std::vector<std::string> parts = {"chunk", "attention", "decode", "refine"};
  double seconds = 0.1;
  app.add_option("--only", only, "shapes whose name contains this text");
  app.add_option("--parts", parts, "chunk, attention, decode, refine")->delimiter(',')->capture_default_str();
  app.add_option("--seconds", seconds, "measured time a figure")->capture_default_str();
  app.add_option("--json", json, "write the figures to this file as well");
  CLI11_PARSE(app, argc, argv);
  require_device("cuda");
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  Stopwatch watch(seconds);
  Report report(watch, only);
  const auto has = [&](const char* part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  if (has("chunk")) report.chunk();
  if (has("attention")) report.attention();
  if (has("decode")) report.decode();
  if (has("refine")) report.refine();
  if (!json.empty()) write_file(json, report.json().dump(1) + "\n");
  return 0;
}

}  // namespace
}  // namespace prism::gpu

int main(int argc, char** argv) try {
  return prism::gpu::run(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_gpu: %s\n", error.what());
  return 1;
}
