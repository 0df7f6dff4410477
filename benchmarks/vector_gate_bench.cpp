// vector_gate as its mixers call it, beside PRISM's own operation with one write (prism_chunk, L = 1):
// forward and backward of the operation, every result checked against the fp64 composed one first.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>

#include "prism/core/error.h"
#include "prism/core/memory.h"
#include "prism/ops/prism_chunk.h"
#include "prism/ops/vector_gate.h"

namespace prism {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Shape {
  int64_t B, T, H, K;
};

/// A mixer's operation as a function of its leaves.
struct Side {
  const char* name;
  std::function<Tensor(const Tensors&, Implementation)> run;
  Tensors leaves;
  double bar;  ///< times PRISM that the project allows; 0: none
  std::vector<double> forward = {}, both = {};
};

Tensor unit(const Tensor& x) { return x / x.norm(2, -1, true); }

VectorGateArgs gate_args(const Tensor& q, const Tensor& k, const Tensor& w, const Tensor& g,
                         Implementation i) {
  VectorGateArgs args{.q = q, .k = k, .w = w, .g = g};
  args.implementation = i;
  return args;
}

std::vector<Side> sides(const Shape& s) {
  at::manual_seed(1);
  const auto normal = [&](int64_t width) { return at::randn({s.B, s.T, s.H, width}); };
  const Tensor q = unit(normal(s.K)), k = unit(normal(s.K)), v = normal(s.K),
               b = at::rand({s.B, s.T, s.H}) * 0.8 + 0.1, g = at::rand({s.B, s.T, s.H}) * -0.2,
               gk = at::rand({s.B, s.T, s.H, s.K}) * -0.2, a = at::rand({s.B, s.T, s.H, s.K});
  const auto prism = [](const Tensors& x, Implementation i) {
    PrismChunkArgs args{.q = x[0], .k = x[1].unsqueeze(2), .w = x[2].unsqueeze(2), .b = x[3], .g = x[4]};
    args.implementation = i;
    return prism_chunk(args).o;
  };
  const auto gla = [](const Tensors& x, Implementation i) {
    return vector_gate(gate_args(x[0], x[1], x[2], x[3], i)).o;
  };
  const auto kda = [](const Tensors& x, Implementation i) {
    VectorGateArgs args = gate_args(x[0], x[1], x[2], x[3], i);
    args.b = x[4];
    return vector_gate(args).o;
  };
  const auto pkda = [](const Tensors& x, Implementation i) {
    VectorGateArgs args = gate_args(x[0], x[1], x[2], x[3], i);
    args.b = x[4], args.erase_read = x[5];
    return vector_gate(args).o;
  };
  const auto rwkv7 = [](const Tensors& x, Implementation i) {
    VectorGateArgs args = gate_args(x[0], x[1], x[2], x[3], i);
    args.erase_read = x[4], args.erase_key = x[4] * x[5], args.erase_undecayed = true;
    return vector_gate(args).o;
  };
  const auto gsa = [](const Tensors& x, Implementation i) {
    VectorGateArgs keys = gate_args(x[0], x[3], x[1], x[4], i);
    keys.read_values = true;
    return vector_gate(gate_args(at::softmax(vector_gate(keys).o, -1), x[3], x[2], x[4], i)).o;
  };
  return {{"prism L=1", prism, {q, k, v, b, g}, 0}, {"gla", gla, {q, k, v, gk}, 2.5},
          {"kda", kda, {q, k, v, gk, b}, 2.5},      {"pkda", pkda, {q, k, v, gk, b, unit(k + 0.2 * q)}, 0},
          {"rwkv7", rwkv7, {q, k, v, gk, k, a}, 3}, {"gsa", gsa, {q, k, v, 1 - gk.exp(), gk}, 0}};
}

Tensors outputs_and_gradients(const Side& side, const Tensors& leaves, Implementation implementation) {
  for (const Tensor& leaf : leaves) leaf.requires_grad_();
  const Tensor o = side.run(leaves, implementation);
  Tensors all = torch::autograd::grad({o.square().sum()}, leaves);
  all.push_back(o.detach());
  return all;
}

/// The first two rows of the batch, fp32 fused against fp64 composed.
void check_results(const Side& side) {
  const auto part = [&](at::ScalarType type) {
    Tensors leaves;
    for (const Tensor& x : side.leaves) leaves.push_back(x.slice(0, 0, 2).to(type, false, true));
    return leaves;
  };
  const Tensors found = outputs_and_gradients(side, part(at::kFloat), Implementation::kFused),
                exact = outputs_and_gradients(side, part(at::kDouble), Implementation::kComposed);
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = ((found[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
    check(error <= 1e-5, "bench vector_gate: {}: tensor {} is off by {:.1e}, over 1e-5", side.name, i, error);
  }
}

double milliseconds(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// One turn of every side; the upstream gradient is made outside the clock.
void take_turn(std::vector<Side>& all, const Tensor& up, Implementation implementation) {
  for (Side& side : all) {
    {
      const c10::NoGradGuard no_grad;
      side.forward.push_back(milliseconds([&] { side.run(side.leaves, implementation); }));
    }
    side.both.push_back(milliseconds(
        [&] { torch::autograd::grad({side.run(side.leaves, implementation)}, side.leaves, {up}); }));
  }
}

void measure(const Shape& s, double seconds, Implementation implementation) {
  std::vector<Side> all = sides(s);
  for (Side& side : all) {
    check_results(side);
    for (Tensor& leaf : side.leaves) leaf = leaf.detach().clone().requires_grad_();
  }
  const Tensor up = at::randn({s.B, s.T, s.H, s.K});
  take_turn(all, up, implementation);
  for (Side& side : all) side.forward.clear(), side.both.clear();
  const auto start = std::chrono::steady_clock::now();
  for (int turn = 0;
       turn < 5 || std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds); ++turn)
    take_turn(all, up, implementation);
  for (const Side& side : all) {
    const double both = median(side.both), times = both / median(all[0].both);
    fmt::print("{:>4},{},{},{:<3} {:<10} {:>9.2f} {:>9.2f} {:>7.2f}x{}\n", s.B, s.T, s.H, s.K, side.name,
               median(side.forward), both, times,
               side.bar == 0 ? "" : fmt::format("  (bar {}x{})", side.bar, times > side.bar ? ", OVER" : ""));
  }
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) {
  using namespace prism;
  CLI::App app("vector_gate as GLA, KDA, PKDA, RWKV-7 and GSA call it, beside prism_chunk",
               "bench_vector_gate");
  int threads = 2;
  double seconds = 5;
  std::vector<int64_t> widths = {32};
  bool composed = false;
  app.add_option("--threads", threads, "threads of every side")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", seconds, "time for each width")->check(CLI::PositiveNumber);
  app.add_option("--widths", widths, "K = V of each head")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_flag("--composed", composed, "time the composed implementation instead");
  CLI11_PARSE(app, argc, argv);
  tune_allocator();
  at::set_num_threads(threads);
  try {
    fmt::print("{} threads; medians in ms, fp32\n{:>13} {:<10} {:>9} {:>9}\n", threads, "B,T,H,K=V",
               "operation", "forward", "fwd+bwd");
    for (const int64_t width : widths)
      measure({128, 200, 2, width}, seconds, composed ? Implementation::kComposed : Implementation::kFused);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
